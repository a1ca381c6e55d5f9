package ipvlan

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// kind is the role's name and the kernel's kind of link.
const kind = "ipvlan"

// Role is the ipvlan role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{kind},
		Summary:   "an interface that shares the MAC of one of the host's",
		Reference: "v1.9.1",
	}, func(c *Conf) attach.SpecBuilder { return &role{Upper: c.upper(), conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct {
	attach.Upper
	conf *Conf
}

// Observe reads the master: that of the plugin before, if there is one and the
// configuration names none.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	u := r.Upper
	if u.Master == "" && in.Chained != nil {
		if n := len(in.Chained.Interfaces); n != 1 || in.Chained.Interfaces[0].Name == "" {
			return &roles.ConfError{Path: "master", Reason: fmt.Sprintf("is not set, and the plugin before made %d interfaces: set master, or chain to a plugin that names exactly one", n)}
		}
		u.Master = in.Chained.Interfaces[0].Name
	}
	return u.Observe(ctx, h, in, container)
}

// Build computes the spec and the result of one attachment. The MAC is the
// master's: what tells interfaces on one master apart is their addresses, so
// there must be some. Without ipam they are those of the plugin before.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	if r.conf.IPAM.Type == "" {
		given, err := inherited(in)
		if err != nil {
			return nil, err
		}
		with := *in
		with.IPAM, in = given, &with
	}
	return r.Link(in, netops.Link{Mode: r.conf.Mode})
}

// inherited is what the plugin before gave: its result on ADD, on CHECK what
// came of it.
func inherited(in *attach.Input) (*roles.Result, error) {
	if in.Prev != nil {
		return attach.IPAMPart(in.Prev, in.Key.IfName)
	}
	if in.Chained == nil || len(in.Chained.IPs) == 0 {
		return nil, &roles.ConfError{Path: "ipam.type", Reason: "is required, unless the plugin before gives addresses: containers on one master are told apart by them"}
	}
	return in.Chained, nil
}

// Status tells whether the kernel has ipvlans, and the master is there. Without a
// name it may be one that the plugin before will make.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if r.conf.Master == "" {
		return attach.KindStatus(ctx, h, kind)
	}
	return r.Upper.Status(ctx, h)
}
