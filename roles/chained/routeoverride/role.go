package routeoverride

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the route-override role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:   []string{"route-override"},
		Summary: "deletes and adds routes of a container's interface",
	}, func(c *Conf) attach.Chained { return &role{keys: c.keys()} })
}

// role implements attach.Chained for one configuration.
type role struct{ keys Keys }

// Wants reports whether the configuration changes a route.
func (r *role) Wants() bool {
	k := &r.keys
	return isSet(k.FlushRoutes) || isSet(k.FlushGateway) || len(k.DelRoutes) > 0 || len(k.AddRoutes) > 0
}

// Shared is empty: routes belong to the container.
func (r *role) Shared() []string { return nil }

// Observe reads the routes of the container's main tables.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var all []netops.Route
	if container != nil {
		var err error
		all, err = h.Net.Routes(ctx, container, unix.RT_TABLE_MAIN)
		if err != nil {
			return err
		}
	}
	in.Observed = all
	return nil
}

// Build computes the routes. Their inverses, which ADD records, are DEL, so the deleted routes come back; their comparison with the
// kernel is CHECK.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	if in.Prev != nil && isSet(r.keys.SkipCheck) {
		return new(attach.Desired), nil
	}
	var none roles.Faults // Validate has reported them
	deleted, added := parse(&none, "", r.keys.DelRoutes), parse(&none, "", r.keys.AddRoutes)
	observed, _ := in.Observed.([]netops.Route)
	var out attach.Desired
	var gone []netops.Route
	for _, o := range observed {
		isAdded := slices.ContainsFunc(added, func(a route) bool { return a.dst == o.Dst && a.via == o.Via })
		if o.Link == in.Key.IfName && r.deletes(&o, deleted, in) && (in.Prev == nil || !isAdded) {
			gone = append(gone, o)
		}
	}
	// Routes to gateways go last: others need them.
	sorting.Stable(gone, func(a, b netops.Route) int { return hasNextHop(&b) - hasNextHop(&a) })
	for _, o := range gone {
		out.Spec.Add(&netops.Route{In: netops.Container, Link: o.Link, Dst: o.Dst, Via: o.Via, Priority: o.Priority, Table: unix.RT_TABLE_MAIN, Absent: true})
	}
	for _, a := range added {
		if in.Prev == nil && has(observed, in.Key.IfName, a) && !has(gone, in.Key.IfName, a) {
			continue // it is not the role's: DEL leaves it
		}
		out.Spec.Add(&netops.Route{In: netops.Container, Link: in.Key.IfName, Dst: a.dst, Via: a.via})
	}
	out.Result = r.result(in.Chained, deleted, added)
	return &out, nil
}

// has reports whether the routes over a link contain one.
func has(all []netops.Route, link string, one route) bool {
	return slices.ContainsFunc(all, func(r netops.Route) bool { return r.Link == link && r.Dst == one.dst && r.Via == one.via })
}

func hasNextHop(r *netops.Route) int {
	if r.Via.IsValid() {
		return 1
	}
	return 0
}

// deletes reports whether the configuration deletes a route of the interface. ADD deletes only routes of delroutes that prevResult has, so the
// subnet's own route stays. CHECK sees only what is left of prevResult, so it ignores the routes that the kernel and router advertisements make.
func (r *role) deletes(o *netops.Route, deleted []route, in *attach.Input) bool {
	if in.Prev != nil && (o.Protocol == unix.RTPROT_KERNEL || o.Protocol == unix.RTPROT_RA) {
		return false
	}
	isDefault := o.Dst.Bits() == 0
	if isDefault && (isSet(r.keys.FlushGateway) || isSet(r.keys.FlushRoutes)) {
		return true
	}
	if isSet(r.keys.FlushRoutes) {
		return o.Via.IsValid() && !o.Dst.Addr().IsLinkLocalUnicast()
	}
	if !slices.ContainsFunc(deleted, func(d route) bool { return d.dst == o.Dst }) {
		return false
	}
	return in.Prev != nil || slices.ContainsFunc(in.Chained.Routes, func(p *types.Route) bool { return destination(p) == o.Dst })
}

// destination is that of a route of a result, or invalid.
func destination(p *types.Route) netip.Prefix {
	if p == nil {
		return netip.Prefix{}
	}
	dst, _ := attach.Prefix(p.Dst)
	return dst.Masked()
}

// result is prevResult with the routes that are kept and added. flushgateway takes the gateways from its addresses, so kept routes name theirs.
func (r *role) result(prev *roles.Result, deleted, added []route) *roles.Result {
	out := *prev
	out.Routes = nil
	for _, p := range prev.Routes {
		dst := destination(p)
		isGone := isSet(r.keys.FlushRoutes) || isSet(r.keys.FlushGateway) && dst.Bits() == 0 ||
			slices.ContainsFunc(deleted, func(d route) bool { return d.dst == dst })
		if isGone {
			continue
		}
		if gw := gatewayOf(prev, dst); isSet(r.keys.FlushGateway) && p.GW == nil && gw != nil {
			c := *p
			c.GW, p = gw, &c // that of the addresses goes
		}
		out.Routes = append(out.Routes, p)
	}
	for _, a := range added {
		gw := a.via
		if !gw.IsValid() { // on the link, as the role dhcp says it
			gw = unspecified(a.dst)
		}
		out.Routes = append(out.Routes, &types.Route{Dst: roles.IPNet(a.dst), GW: gw.AsSlice()})
	}
	if !isSet(r.keys.FlushGateway) {
		return &out
	}
	out.IPs = nil
	for _, ip := range prev.IPs {
		c := *ip
		c.Gateway = nil
		out.IPs = append(out.IPs, &c)
	}
	return &out
}

// gatewayOf returns the first gateway of a result's addresses in the family of a destination, or nil.
func gatewayOf(r *roles.Result, dst netip.Prefix) net.IP {
	for _, ip := range r.IPs {
		if a, ok := attach.Prefix(ip.Address); ok && ip.Gateway != nil && a.Addr().Is4() == dst.Addr().Is4() {
			return ip.Gateway
		}
	}
	return nil
}

// unspecified is the unspecified address of a prefix's family.
func unspecified(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
