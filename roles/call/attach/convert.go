package attach

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Prefix converts a result's address to a netip.Prefix with its host bits. ok is false if
// the address is invalid.
func Prefix(n net.IPNet) (p netip.Prefix, ok bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	a = a.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 128 && a.Is4() {
		ones -= 96
	}
	if (bits == 0 && len(n.Mask) != 0) || ones < 0 || ones > a.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, ones), true
}

// Addr converts an address to a netip.Addr. nil and invalid addresses become the zero
// Addr.
func Addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// IPConfig is an entry of a result's ips, decoded and validated.
type IPConfig struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// Addresses decodes a result's ips. A third-party IPAM plugin may send invalid ones; the
// error names the index.
func Addresses(r *roles.Result) ([]IPConfig, error) {
	out := make([]IPConfig, 0, len(r.IPs))
	for i, ip := range r.IPs {
		p, ok := Prefix(ip.Address)
		if !ok {
			return nil, fmt.Errorf("%w: result ips[%d].address: %v is not an address with a prefix length", roles.ErrDecode, i, ip.Address)
		}
		gw := Addr(ip.Gateway)
		if gw.IsValid() && gw.Is4() != p.Addr().Is4() {
			return nil, fmt.Errorf("%w: result ips[%d].gateway: %s is of another family than %s", roles.ErrDecode, i, gw, p)
		}
		out = append(out, IPConfig{Address: p, Gateway: gw})
	}
	return out, nil
}

// Prefixes returns the addresses with their prefix lengths.
func Prefixes(ips []IPConfig) []netip.Prefix {
	out := make([]netip.Prefix, len(ips))
	for i, ip := range ips {
		out[i] = ip.Address
	}
	return out
}

// Routes converts a result's routes to routes over a container's interface. A route
// without a gateway uses the first gateway of its family, if there is one and the route's
// scope is not that of the link. The
// unspecified gateway (0.0.0.0, ::) means an on-link route; role dhcp uses it.
// Duplicates, which DHCP's classful routes may contain, are removed.
func Routes(r *roles.Result, link string) ([]netops.Object, error) {
	ips, err := Addresses(r)
	if err != nil {
		return nil, err
	}
	var out []netops.Object
	for i, rt := range r.Routes {
		if rt == nil {
			continue
		}
		dst, ok := Prefix(rt.Dst)
		if !ok {
			return nil, fmt.Errorf("%w: result routes[%d].dst: %v is not a network", roles.ErrDecode, i, rt.Dst)
		}
		via := Addr(rt.GW)
		switch {
		case !via.IsValid() && rt.Scope != nil && *rt.Scope >= unix.RT_SCOPE_LINK: // the kernel refuses a gateway
		case !via.IsValid():
			via = firstGateway(ips, dst.Addr().Is4())
		case via.IsUnspecified():
			via = netip.Addr{}
		}
		o := &netops.Route{
			In: netops.Container, Link: link, Dst: dst.Masked(), Via: via,
			MTU: rt.MTU, AdvMSS: rt.AdvMSS, Priority: rt.Priority, Scope: rt.Scope,
		}
		if rt.Table != nil && *rt.Table != unix.RT_TABLE_MAIN {
			o.Table = *rt.Table
		}
		if !slices.ContainsFunc(out, func(other netops.Object) bool { return sameRoute(other.(*netops.Route), o) }) {
			out = append(out, o)
		}
	}
	return out, nil
}

// sameRoute reports whether two routes are equal. The kernel would refuse the second.
func sameRoute(a, b *netops.Route) bool {
	x, y := *a, *b
	x.Scope, y.Scope = nil, nil
	sameScope := a.Scope == b.Scope || a.Scope != nil && b.Scope != nil && *a.Scope == *b.Scope
	return x == y && sameScope
}

// firstGateway returns the first gateway of a family, or the zero Addr.
func firstGateway(ips []IPConfig, is4 bool) netip.Addr {
	for _, ip := range ips {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == is4 {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// routeText returns a route as iproute2 prints it.
func routeText(r *types.Route) string {
	s := r.Dst.String()
	if len(r.GW) > 0 {
		s += " via " + r.GW.String()
	}
	return s
}
