// Package dranet is the daemon that gives cluster-wide addresses to devices of Dynamic Resource Allocation. DraNet calls it
// (github.com/kubernetes-sigs/dranet, --profile-provider=webhook, v1.4.0): a profile is the name of a network with the IPAM role
// range, and a device of a ResourceClaim gets one address of each range of it. See docs/range.md.
//
// The addresses are leases in node.db, by the claim's UID and the device's name. So the same call gets the same answer, also after
// a lost answer and in the next process. DraNet does not repeat a failed release, so the daemon releases what no ResourceClaim of the
// cluster holds.
package dranet

import (
	"context"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
)

// name is the role's name.
const name = "dranet"

// Reader returns the name of the network in a file, and what gives its addresses to devices.
type Reader func(file []byte) (network string, _ ranges.Devices, err error)

// Role returns the daemon's role.
func Role(read Reader) roles.Role {
	return roles.Role{
		Names: []string{name}, Kind: roles.Daemon,
		Summary: "gives addresses of cluster-wide ranges to devices that DraNet attaches to pods",
		Run: func(ctx context.Context, h *roles.Host, args []string) error {
			return run(ctx, h, args, read)
		},
	}
}
