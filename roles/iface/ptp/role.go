package ptp

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the ptp role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{"ptp"},
		Summary:   "a veth pair between container and host, routed, with masquerade",
		Reference: "v1.9.1",
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is what holds the networks' masquerade entries: two networks may have
// one subnet, so they have one lock.
func (r *role) Shared() []string { return []string{"masquerade/" + hostLinks} }

// Masquerade is what the configuration asks for.
func (r *role) Masquerade() attach.Masquerade { return r.conf.masquerade() }

// observed stands for a kernel that Build needs to know nothing of.
type observed struct{}

// Observe reads nothing.
func (r *role) Observe(_ context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	r.conf.masquerade().Warn(h, in)
	in.Observed = observed{}
	return nil
}
