package dhcp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// routes4 returns the classless routes (RFC 3442), which replace all others, or the
// static routes and a default route.
func routes4(ack *reply, routers []net.IP) []*types.Route {
	var out []*types.Route
	for _, r := range ack.ClasslessStaticRoute() {
		if r.Router.IsUnspecified() {
			out = append(out, linkRoute(*r.Dest))
			continue
		}
		route := &types.Route{Dst: *r.Dest, GW: r.Router}
		route.Dst.IP = route.Dst.IP.Mask(route.Dst.Mask)
		out = append(out, route)
	}
	if len(out) > 0 {
		return out
	}
	for b := ack.Options.Get(dhcpv4.OptionStaticRoutingTable); len(b) >= 8; b = b[8:] {
		dst, gw := net.IP(b[:4]), net.IP(b[4:8])
		mask := dst.DefaultMask()
		if mask == nil || dst.IsUnspecified() {
			continue // an address without a class, or a default route, which this option must not have
		}
		out = append(out, &types.Route{Dst: net.IPNet{IP: dst.Mask(mask), Mask: mask}, GW: gw})
	}
	if len(routers) > 0 {
		out = append(out, &types.Route{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, GW: routers[0]})
	}
	return out
}

// linkRoute returns a route to a destination on the link itself.
func linkRoute(dst net.IPNet) *types.Route {
	scope := int(unix.RT_SCOPE_LINK)
	dst.IP = dst.IP.Mask(dst.Mask)
	return &types.Route{Dst: dst, GW: net.IPv4zero.To4(), Scope: &scope}
}

// reachable4 returns routes that the kernel accepts. A router outside the link's
// networks is assumed to be on the link, and gets a host route before the first route
// that needs it: RFC 3442 does not mention the case, clouds lease such addresses, and
// systemd-networkd does the same. A route through an address that a router cannot have is
// left out. unusual describes these changes.
func reachable4(addr netip.Prefix, routes []*types.Route) (out []*types.Route, unusual []string) {
	near := []netip.Prefix{addr.Masked()}
	toLink := func(dst netip.Prefix) {
		if !slices.Contains(near[1:], dst) {
			near = append(near, dst)
			out = append(out, linkRoute(roles.IPNet(dst)))
		}
	}
	for _, r := range routes {
		dst, _ := attach.Prefix(r.Dst)
		gw := attach.Addr(r.GW)
		switch {
		case gw.IsUnspecified():
			toLink(dst)
			continue
		case !canRoute(addr, r.GW):
			unusual = append(unusual, fmt.Sprintf("%s via %s: left out, because a router cannot have this address", dst, gw))
			continue
		case !slices.ContainsFunc(near, func(n netip.Prefix) bool { return n.Contains(gw) }):
			unusual = append(unusual, fmt.Sprintf("%s via %s: the router is not in the network of %s, assumed to be on the link", dst, gw, addr))
			toLink(netip.PrefixFrom(gw, gw.BitLen()))
		}
		out = append(out, r)
	}
	return out, unusual
}

// canRoute reports whether an address can be that of a router for an interface with
// addr. The broadcast address of the interface's subnet cannot.
func canRoute(addr netip.Prefix, router net.IP) bool {
	if !isHost4(router) {
		return false
	}
	if addr.Bits() >= 31 || !addr.Contains(attach.Addr(router)) {
		return true
	}
	n := roles.IPNet(addr)
	last := n.IP.To4()
	for i, m := range n.Mask {
		last[i] |= ^m
	}
	return !last.Equal(router)
}
