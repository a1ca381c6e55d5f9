// Command demo-azure builds a node of AKS in mode bridge on this machine: Azure's network and metadata service around it, its
// eth0 in azure0, five pods with addresses of the cloud's network, the bridge's ports, and the two state files. It pings, attaches
// pods until no address is left, and removes everything.
package main

import "github.com/cnibox/cnibox/test/internal/stage"

func main() {
	stage.Main(func(s *stage.Stage) error { return (&demo{Stage: s}).play() })
}
