package routed

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the routed role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:   []string{"routed"},
		Summary: "a veth or netkit pair without a bridge: host routes, a virtual gateway address, a routing table for each NIC",
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// HostPrefix is the start of the names of the interfaces on the host.
func (r *role) HostPrefix() string { return r.conf.HostVethPrefix }

// Shared is one lock for all networks: they share rules, tables and NICs.
func (r *role) Shared() []string { return []string{"routed"} }

// Status reports whether the kernel can make the pair, and whether the uplinks and the addresses of
// egressAddress exist.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if err := r.conf.LinkType.Status(ctx, h); err != nil {
		return err
	}
	for i, u := range r.conf.Uplinks {
		if _, err := h.Net.Link(ctx, nil, u.Link); err != nil {
			return fmt.Errorf("%w: uplinks[%d]: %w", roles.ErrNotAvailable, i, err)
		}
	}
	return r.conf.masquerade().Status(ctx, h)
}
