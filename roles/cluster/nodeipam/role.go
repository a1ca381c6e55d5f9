// Package nodeipam is the daemon that assigns pod networks to the nodes of a cluster, as
// kube-controller-manager does with --allocate-node-cidrs. See docs/nodeipam.md.
//
// One of several processes leads, by a Lease. The leader reads all Nodes, gives each Node without pod
// networks a free block of each cluster network, and releases the blocks of deleted Nodes. Its only
// state that outlives it is the Nodes' spec.podCIDRs.
package nodeipam

import "github.com/cnibox/cnibox/roles"

// name is the role's name.
const name = "nodeipam"

// Role returns the daemon's role.
func Role() roles.Role {
	return roles.Role{
		Names: []string{name}, Kind: roles.Daemon,
		Summary: "assigns pod networks to the nodes of a cluster",
		Run:     Run, Verbs: verbs,
	}
}
