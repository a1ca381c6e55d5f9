// Package agent is the daemon that connects this node's pods with the pods of other nodes. It reads
// the other nodes from a registry. For each node it programs entries of a VXLAN device, or plain
// routes, in the kernel.
//
// The agent replaces flanneld. It has the same flags, records and device, so both can run in one
// cluster. After every event the agent compares the complete desired state with the kernel's. See
// docs/overlay.md.
package agent

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// ownName is the role's name. Under the name flanneld, etcd is the default registry.
const ownName = "agent"

// Role returns the agent's role, which has the name flanneld, too. demands returns what the network in a file demands of
// cluster-wide ranges.
func Role(demands func(file []byte) []store.RangeDemand) roles.Role {
	return roles.Role{
		Names: []string{ownName, flanneld}, Kind: roles.Daemon,
		Summary: "connects pods across nodes with VXLAN, WireGuard or plain routes",
		Run: func(ctx context.Context, h *roles.Host, args []string) error {
			return run(ctx, h, args, demands)
		},
		Verbs: verbs,
	}
}
