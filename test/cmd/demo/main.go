// Command demo builds a cluster of three nodes on this machine, with the addresses of flannel's documentation. It shows agents,
// pods, the kernel's entries, a ping between all pods, and one packet on the wire. Then it removes everything and checks that
// nothing is left.
package main

import "github.com/cnibox/cnibox/test/internal/stage"

func main() {
	stage.Main(func(s *stage.Stage) error { return (&demo{Stage: s}).play() })
}
