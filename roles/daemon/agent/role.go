// Package agent is the daemon that connects this node's pods with those of other
// nodes: it learns from a registry who these are, and keeps a tunnel device (or
// plain routes) with an entry for each of them in the kernel.
//
// It does what flanneld does, with its flags, its records and its device, so
// that nodes of both share a cluster. It differs in how: whatever happens, what
// should be is compared with what is. See docs/overlay.md.
package agent

import "github.com/cnibox/cnibox/roles"

// ownName is the role's; with flanneld, etcd is the default registry.
const ownName = "agent"

// Role is the agent, which answers to flanneld too.
func Role() roles.Role {
	return roles.Role{
		Names: []string{ownName, flanneld}, Kind: roles.Daemon,
		Summary: "connects pods across nodes: VXLAN or plain routes to every other node",
		Run:     Run, Verbs: verbs,
	}
}
