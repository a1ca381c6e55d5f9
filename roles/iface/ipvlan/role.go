package ipvlan

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// kind is the role's name and the kernel's kind of link.
const kind = "ipvlan"

// Role is the ipvlan role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{kind},
		Summary:   "an interface that shares the MAC of a host interface",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.SpecBuilder { return &role{Upper: c.upper(), conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct {
	attach.Upper
	conf *Conf
}

// Observe reads the master. If the configuration has none, the master is the
// interface of the previous plugin's result.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	u := r.Upper
	if u.Master == "" && in.Chained != nil {
		if n := len(in.Chained.Interfaces); n != 1 || in.Chained.Interfaces[0].Name == "" {
			return &roles.ConfError{Path: "master", Reason: fmt.Sprintf("is not set, and the previous plugin's result has %d interfaces: set master, or use a previous plugin whose result has exactly one", n)}
		}
		u.Master = in.Chained.Interfaces[0].Name
	}
	return u.Observe(ctx, h, in, container)
}

// Build computes the spec and the result of one attachment. The MAC is the
// master's, so only the addresses distinguish the interfaces on one master: at
// least one is required. Without ipam the addresses come from the previous plugin.
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

// inherited is the result that has the previous plugin's addresses: on ADD its
// own result, on CHECK the part of prevResult that belongs to the interface.
func inherited(in *attach.Input) (*roles.Result, error) {
	if in.Prev != nil {
		return attach.IPAMPart(in.Prev, in.Key.IfName)
	}
	if in.Chained == nil || len(in.Chained.IPs) == 0 {
		return nil, &roles.ConfError{Path: "ipam.type", Reason: "is required, unless the previous plugin gives addresses: only the addresses distinguish the containers on one master"}
	}
	return in.Chained, nil
}

// Status reports whether the kernel supports ipvlan and whether the master
// exists. If no master is configured it is not looked for: the previous plugin
// may create it.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if r.conf.Master == "" {
		return attach.KindStatus(ctx, h, kind)
	}
	return r.Upper.Status(ctx, h)
}
