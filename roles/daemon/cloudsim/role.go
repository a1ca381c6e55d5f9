// Package cloudsim is the daemon that plays a cloud's metadata service: from one
// description of a node's interfaces it answers as Azure, AWS, Google and others
// do, with their headers and their refusals, and with every fault that one wants to
// see a reader bear. It is for tests, the demo and people's trials; see
// docs/cloud-sim.md.
package cloudsim

import "github.com/cnibox/cnibox/roles"

const ownName = "cloud-sim"

// Role is the simulator.
func Role() roles.Role {
	return roles.Role{
		Names: []string{ownName}, Kind: roles.Daemon,
		Summary: "plays a cloud's metadata service, faults included, for tests and trials",
		Run:     Run, Verbs: verbs,
	}
}
