// Command demo makes a cluster of three nodes on this machine, with the addresses
// that every description of flannel shows: agents, pods, the kernel's entries, a
// ping between all pods, one packet on its way. Then it removes everything and
// proves that nothing is left.
package main

import "github.com/cnibox/cnibox/test/internal/stage"

func main() {
	stage.Main(func(s *stage.Stage) error { return (&demo{Stage: s}).play() })
}
