// Command demo-azure makes the node that an article about AKS shows, on this machine:
// Azure's network and metadata service around it, its eth0 in azure0, five pods with
// addresses of the cloud's network, the bridge's ports and the two files in which one
// reads how the node is wired. It pings, takes pods until there is no address left,
// and removes everything.
package main

import "github.com/cnibox/cnibox/test/internal/stage"

func main() {
	stage.Main(func(s *stage.Stage) error { return (&demo{Stage: s}).play() })
}
