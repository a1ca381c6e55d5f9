// Command demo-policy builds a node with two pods on this machine, whose agent enforces the network policies of a directory. It tries a
// policy on the live connections, enforces it, lets cnibox explain what it denies, and removes everything.
package main

import "github.com/cnibox/cnibox/test/internal/stage"

func main() {
	stage.Main(func(s *stage.Stage) error { return (&demo{Stage: s}).play() })
}
