// Package agent is the daemon that connects this node's pods with the pods of other nodes. It reads
// the other nodes from a registry. For each node it programs entries of a VXLAN device, or plain
// routes, in the kernel.
//
// The agent replaces flanneld. It has the same flags, records and device, so both can run in one
// cluster. After every event the agent compares the complete desired state with the kernel's. See
// docs/overlay.md.
package agent

import "github.com/cnibox/cnibox/roles"

// ownName is the role's name. Under the name flanneld, etcd is the default registry.
const ownName = "agent"

// Role returns the agent's role, which has the name flanneld, too.
func Role() roles.Role {
	return roles.Role{
		Names: []string{ownName, flanneld}, Kind: roles.Daemon,
		Summary: "connects pods across nodes with VXLAN, WireGuard or plain routes",
		Run:     Run, Verbs: verbs,
	}
}
