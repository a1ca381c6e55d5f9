package sbr

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// wiring is one attachment under computation.
type wiring struct {
	*role
	in *attach.Input
	observed
	ips []attach.Family
	// result are the routes that prevResult tells.
	result []*netops.Route
	spec   netops.Spec
}

// Build computes rules and tables. Routes are copied into the tables before any
// leaves the main one, and the routes that others are reached by leave it last.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	part, err := attach.IPAMPart(in.Chained, in.Key.IfName)
	if err != nil {
		return nil, err
	}
	w := &wiring{role: r, in: in}
	w.observed, _ = in.Observed.(observed)
	if w.ips, err = attach.Addresses(part); err != nil {
		return nil, err
	}
	routes, err := attach.Routes(part, in.Key.IfName)
	if err != nil {
		return nil, err
	}
	for _, o := range routes {
		w.result = append(w.result, o.(*netops.Route))
	}
	if r.conf.Table != nil {
		for _, ip := range w.ips {
			w.rule(ip, *r.conf.Table)
		}
		return &attach.Desired{Spec: w.spec}, nil
	}
	w.tables()
	w.leave()
	if r.conf.AddSourceHints {
		w.hints()
	}
	return &attach.Desired{Spec: w.spec, Result: r.handedOn(in.Chained)}, nil
}

// handedOn is prevResult with static gateways in its default routes: the
// interface plugin's CHECK asks for those that it tells.
func (r *role) handedOn(prev *roles.Result) *roles.Result {
	out := *prev
	out.Routes = nil
	for _, rt := range prev.Routes {
		if rt != nil && (rt.Table == nil || *rt.Table == unix.RT_TABLE_MAIN) {
			dst, ok := attach.Prefix(rt.Dst)
			if gw := r.conf.gateway(dst.Addr().Is4()); ok && dst.Bits() == 0 && gw.IsValid() {
				c := *rt
				c.GW, rt = gw.AsSlice(), &c
			}
		}
		out.Routes = append(out.Routes, rt)
	}
	return &out
}

// rule leads what an address sends to its table.
func (w *wiring) rule(ip attach.Family, table int) {
	addr := ip.Address.Addr()
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	w.spec.Add(&netops.Rule{In: netops.Container, Family: family, From: netip.PrefixFrom(addr, addr.BitLen()), Table: table})
}

// tables fills a table for each address, and makes the rules for them.
func (w *wiring) tables() {
	chosen := make([]int, len(w.ips))
	for i, ip := range w.ips {
		chosen[i] = w.table(ip, chosen[:i])
		w.fill(ip, chosen[i])
	}
	for i, ip := range w.ips {
		w.rule(ip, chosen[i])
	}
}

// table is the address's: the next free one on ADD, and on CHECK the one that
// it has.
func (w *wiring) table(ip attach.Family, chosen []int) int {
	if w.in.Prev != nil {
		for _, rule := range w.Rules {
			if rule.From.IsSingleIP() && rule.From.Addr() == ip.Address.Addr() && w.isOwn(rule.Table) {
				return rule.Table
			}
		}
	}
	t := firstTable
	taken := func() bool {
		return isReserved(t) || slices.Contains(chosen, t) ||
			slices.ContainsFunc(w.Rules, func(r netops.Rule) bool { return r.Table == t }) ||
			slices.ContainsFunc(w.Routes, func(r netops.Route) bool { return r.Table == t })
	}
	for taken() {
		t++
	}
	return t
}

// main lists the interface's routes in the main table, but for link-local ones:
// those lead nowhere else and serve every address.
func (w *wiring) main() []netops.Route {
	var all []netops.Route
	for _, r := range w.Routes {
		if r.Link == w.in.Key.IfName && r.Table == unix.RT_TABLE_MAIN && !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			all = append(all, r)
		}
	}
	return all
}

// fill wires the routes of an address's table: those that lead somewhere on the
// link first, by which the gateways of the others are reached.
func (w *wiring) fill(ip attach.Family, table int) {
	own := w.copied(ip, table)
	if w.in.Prev != nil {
		own = w.expected(ip, table)
	}
	is4 := ip.Address.Addr().Is4()
	isDefault := func(r *netops.Route) bool { return r.Dst.Bits() == 0 }
	gw := w.conf.gateway(is4)
	if gw.IsValid() {
		own = slices.DeleteFunc(own, isDefault)
	} else if !slices.ContainsFunc(own, isDefault) {
		gw = ip.Gateway
	}
	if gw.IsValid() {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if is4 {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		reached := func(r *netops.Route) bool { return !r.Via.IsValid() && r.Dst.Contains(gw) }
		own = append(own, &netops.Route{
			In: netops.Container, Link: w.in.Key.IfName, Dst: all, Via: gw, Table: table,
			OnLink: !gw.IsLinkLocalUnicast() && !slices.ContainsFunc(own, reached),
		})
	}
	if !is4 {
		own = append(own, &netops.Route{In: netops.Container, Link: w.in.Key.IfName, Dst: netip.MustParsePrefix("fe80::/64"), Table: table})
	}
	slices.SortStableFunc(own, func(a, b *netops.Route) int { return distance(a) - distance(b) })
	for _, r := range own {
		w.spec.Add(r)
	}
}

// distance orders routes such that each comes behind those that it needs.
func distance(r *netops.Route) int {
	if r.Via.IsValid() {
		return 1
	}
	return 0
}

// copied are the routes of the main table that an address has to do with.
func (w *wiring) copied(ip attach.Family, table int) []*netops.Route {
	var all []*netops.Route
	for _, r := range w.main() {
		if w.belongs(&r, ip) {
			r.In, r.Table = netops.Container, table
			all = append(all, &r)
		}
	}
	return all
}

// expected are the routes that an address's table holds by what prevResult
// tells. The subnet's next hop is whatever it is: the link itself, or on a
// point-to-point link the gateway.
func (w *wiring) expected(ip attach.Family, table int) []*netops.Route {
	var all []*netops.Route
	for _, r := range w.result {
		if (r.Table == 0 || r.Table == unix.RT_TABLE_MAIN) && w.belongs(r, ip) {
			all = append(all, &netops.Route{In: netops.Container, Link: r.Link, Dst: r.Dst, Via: r.Via, Table: table})
		}
	}
	if ip.Address.IsSingleIP() {
		return all
	}
	subnet := &netops.Route{In: netops.Container, Link: w.in.Key.IfName, Dst: ip.Address.Masked(), Table: table}
	for _, r := range w.Routes {
		if r.Table == table && r.Link == subnet.Link && r.Dst == subnet.Dst {
			subnet.Via = r.Via
		}
	}
	return append(all, subnet)
}

// belongs tells whether a route is for what an address sends: it prefers an
// address of the same subnet, or has its gateway there, or neither of both in
// another address's.
func (w *wiring) belongs(r *netops.Route, ip attach.Family) bool {
	if r.Dst.Addr().Is4() != ip.Address.Addr().Is4() {
		return false
	}
	of := r.Via
	if r.Src.IsValid() {
		of = r.Src
	}
	if !of.IsValid() || ip.Address.Contains(of) {
		return true
	}
	return !slices.ContainsFunc(w.ips, func(other attach.Family) bool { return other.Address.Contains(of) })
}

// leave takes the routes out of the main table, those with a gateway first. Of
// what routers advertise CHECK says nothing: they do so again and again.
func (w *wiring) leave() {
	all := w.main()
	slices.SortStableFunc(all, func(a, b netops.Route) int { return distance(&b) - distance(&a) })
	for _, r := range all {
		if w.stays(&r) || w.in.Prev != nil && r.Protocol == unix.RTPROT_RA {
			continue
		}
		w.spec.Add(&netops.Route{
			In: netops.Container, Link: r.Link, Dst: r.Dst, Via: r.Via, Priority: r.Priority, Table: unix.RT_TABLE_MAIN, Absent: true,
		})
	}
}

// stays tells whether a route is a hint that the main table keeps.
func (w *wiring) stays(r *netops.Route) bool {
	return w.conf.AddSourceHints && !r.Via.IsValid() && r.Src.IsValid() && w.isSubnet(r.Dst)
}

// isSubnet tells whether an address of the interface is in the very subnet.
func (w *wiring) isSubnet(dst netip.Prefix) bool {
	return slices.ContainsFunc(w.ips, func(ip attach.Family) bool { return !ip.Address.IsSingleIP() && ip.Address.Masked() == dst })
}

// hints has the main table prefer an address for each subnet on the link, the
// first of those that are in it. IPv4's routes have one already.
func (w *wiring) hints() {
	made := map[netip.Prefix]bool{}
	for _, ip := range w.ips {
		subnet := ip.Address.Masked()
		i := slices.IndexFunc(w.Routes, func(r netops.Route) bool {
			return r.Link == w.in.Key.IfName && r.Dst == subnet && !r.Via.IsValid() && (w.in.Prev != nil || r.Table == unix.RT_TABLE_MAIN)
		})
		if i < 0 || made[subnet] || !w.isSubnet(subnet) {
			continue
		}
		made[subnet] = true
		was := &w.Routes[i]
		if w.stays(was) && w.in.Prev == nil {
			continue
		}
		w.spec.Add(&netops.Route{
			In: netops.Container, Link: w.in.Key.IfName, Dst: subnet, Src: ip.Address.Addr(),
			Priority: was.Priority, Protocol: was.Protocol, Table: unix.RT_TABLE_MAIN,
		})
	}
}
