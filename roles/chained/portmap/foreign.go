package portmap

import (
	"context"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/node"
)

// CheckForeign wants of what the reference plugin made as many rules as there
// are ports, and what it sets for loopback addresses.
func (r *role) CheckForeign(ctx context.Context, h *roles.Host, in *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.Sysctl)
		return !is
	})
	e, err := containerEnds(in)
	if err != nil {
		return nil, err
	}
	f, err := node.Foreign(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	var diffs []netops.Difference
	for _, v4 := range []bool{true, false} {
		ports := slices.DeleteFunc(r.conf.ports(e), func(p port) bool { return p.to.Is4() != v4 })
		if len(ports) == 0 {
			continue
		}
		have, err := h.Net.ForeignHostPorts(ctx, f, !v4)
		if err != nil {
			return nil, err
		}
		if have < len(ports) {
			d := attach.UnlikeAddress(in, ports[0].to, "")
			d.Want, d.Have = fmt.Sprintf("the reference plugin's rules for %d ports", len(ports)), fmt.Sprintf("those for %d", have)
			diffs = append(diffs, d)
		}
	}
	return diffs, nil
}

// CollectForeign removes the reference's chains of containers that are gone. The
// rules of its nftables backend do not tell the network.
func (r *role) CollectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return h.Net.CollectForeignHostPorts(ctx, req.Network, attach.ForeignOf(req))
}

// removeForeign removes what the reference plugin left.
func removeForeign(ctx context.Context, h *roles.Host, in *attach.Input) error {
	there, err := h.Net.HasForeign(ctx, netops.Foreign{Network: in.Key.Network, ContainerID: in.Key.ContainerID})
	if err != nil || !there {
		return err
	}
	f, err := node.Foreign(ctx, h, in.Key, in.Prev)
	if err != nil {
		return err
	}
	return h.Net.RemoveForeignHostPorts(ctx, f)
}
