package hostdevice

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// network is what useInterfaceNetwork copies from the host's interface: as the
// reference, addresses of global scope, routes that neither the kernel nor a router
// advertisement made, and the policy rules that lead packets from such an address
// to such a route.
type network struct {
	Addresses []netip.Prefix
	Routes    []netops.Route
	Rules     []netops.Rule
}

// readNetwork reads the network of an interface on the host. Rules that the
// container has already are left out.
func readNetwork(ctx context.Context, n *netops.Net, link string, container *netops.Namespace) (network, error) {
	var w network
	links, err := n.HostLinks(ctx)
	if err != nil {
		return w, err
	}
	for _, l := range links {
		if l.Name != link {
			continue
		}
		for _, a := range l.Addresses {
			// Nothing in the container renews an address with a lifetime. One of
			// IPv4 is copied nevertheless: a DHCP server leases it to the device.
			if a.Global && (a.Permanent || a.Prefix.Addr().Is4()) {
				w.Addresses = append(w.Addresses, a.Prefix)
			}
		}
	}
	routes, err := n.Routes(ctx, nil, 0)
	if err != nil {
		return w, err
	}
	for _, r := range routes {
		if r.Link == link && r.Table != unix.RT_TABLE_LOCAL && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA &&
			(r.Dst.Addr().Is4() || !r.Dst.Addr().IsLinkLocalUnicast()) {
			w.Routes = append(w.Routes, r)
		}
	}
	// A gateway must be reachable by a route of a narrower scope.
	sorting.Stable(w.Routes, func(a, b netops.Route) int { return cmp.Compare(*b.Scope, *a.Scope) })
	rules, err := n.Rules(ctx, nil)
	if err != nil {
		return w, err
	}
	var present []netops.Rule
	if container != nil {
		if present, err = n.Rules(ctx, container); err != nil {
			return w, err
		}
	}
	for _, r := range rules {
		if w.uses(&r) && !slices.Contains(present, r) {
			w.Rules = append(w.Rules, r)
		}
	}
	return w, nil
}

// uses reports whether the rule leads packets from one of the addresses to one of
// the routes.
func (w *network) uses(r *netops.Rule) bool {
	return r.From.IsValid() && !r.Prohibit && r.Table != unix.RT_TABLE_LOCAL &&
		slices.ContainsFunc(w.Addresses, func(a netip.Prefix) bool { return r.From.Contains(a.Addr()) }) &&
		slices.ContainsFunc(w.Routes, func(o netops.Route) bool { return o.Table == r.Table })
}

// addAddresses adds the addresses that the IPAM plugin has not given to the result.
func (w *network) addAddresses(res *roles.Result) {
	for _, a := range w.Addresses {
		if slices.ContainsFunc(res.IPs, func(ip *current.IPConfig) bool { p, ok := attach.Prefix(ip.Address); return ok && p == a }) {
			continue
		}
		res.IPs = append(res.IPs, &current.IPConfig{Interface: new(int), Address: roles.IPNet(a)})
	}
}

// addRoutes adds the routes and rules to the container's objects, and the routes to
// the result.
func (w *network) addRoutes(s *netops.Spec, name, onHost string, res *roles.Result) {
	for _, r := range w.Routes {
		res.Routes = append(res.Routes, resultRoute(&r))
		o := r
		o.In, o.Link = netops.Container, name
		if !slices.ContainsFunc(s.Objects, func(other netops.Object) bool { return sameRoute(other, &o) }) {
			s.Add(&o)
		}
	}
	for _, r := range w.Rules {
		r.In = netops.Container
		for _, bound := range []*string{&r.IIF, &r.OIF} {
			if *bound == onHost {
				*bound = name
			}
		}
		s.Add(&r)
	}
}

// sameRoute reports whether an object is a route that the kernel takes for the same:
// the IPAM plugin gave it, too.
func sameRoute(o netops.Object, r *netops.Route) bool {
	have, ok := o.(*netops.Route)
	table := func(r *netops.Route) int { return cmp.Or(r.Table, unix.RT_TABLE_MAIN) }
	return ok && have.Dst == r.Dst && have.Via == r.Via && have.Priority == r.Priority && table(have) == table(r)
}

// resultRoute is a route as the reference has it in its result. An IPv6 route on the
// link has the gateway ::, because CHECK would expect an address' gateway.
func resultRoute(r *netops.Route) *types.Route {
	out := &types.Route{Dst: roles.IPNet(r.Dst), Priority: r.Priority, Table: &r.Table}
	switch {
	case r.Via.IsValid():
		out.GW = r.Via.AsSlice()
	case r.Dst.Addr().Is6():
		out.GW = net.IPv6zero
	}
	if *r.Scope != 0 {
		out.Scope = r.Scope
	}
	return out
}
