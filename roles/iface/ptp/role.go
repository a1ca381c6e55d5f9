package ptp

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the ptp role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{"ptp"},
		Summary:   "a veth or netkit pair between container and host, routed, with masquerade",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is the lock of the masquerade entries. All networks use the same one,
// because two networks may have the same subnet.
func (r *role) Shared() []string { return []string{"masquerade/veth*"} }

// Masquerade is the configured masquerading.
func (r *role) Masquerade() attach.Masquerade { return r.conf.masquerade() }

// observed marks that Observe was called. Build needs no kernel state.
type observed struct{}

// Observe reads only whether the kernel can make the pair, and whether the node has the
// addresses of egressAddress.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	if err := r.conf.masquerade().Observe(ctx, h, in); err != nil {
		return err
	}
	first := in.Observed == nil && in.Prev == nil
	in.Observed = observed{}
	if !first {
		return nil
	}
	return r.conf.LinkType.Available(ctx, h)
}

// Status reports whether the kernel can make the pair, and whether the node has the addresses of
// egressAddress.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if err := r.conf.LinkType.Status(ctx, h); err != nil {
		return err
	}
	return r.conf.masquerade().Status(ctx, h)
}
