package sbr

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// builder computes the spec of one attachment.
type builder struct {
	*role
	in *attach.Input
	observed
	ips []attach.IPConfig
	// result are the routes of prevResult.
	result []*netops.Route
	spec   netops.Spec
}

// Build computes the rules and tables. All routes are copied into the tables
// before any is removed from the main table. Routes to gateways are removed
// last, because other routes need them.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	part, err := attach.IPAMPart(in.Chained, in.Key.IfName)
	if err != nil {
		return nil, err
	}
	w := &builder{role: r, in: in}
	w.observed, _ = in.Observed.(observed)
	w.ips, err = attach.Addresses(part)
	if err != nil {
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
			w.addRule(ip, *r.conf.Table)
		}
		return &attach.Desired{Spec: w.spec}, nil
	}
	w.addTables()
	w.removeFromMain()
	if r.conf.AddSourceHints {
		w.addHints()
	}
	return &attach.Desired{Spec: w.spec, Result: r.resultWithGateways(in.Chained)}, nil
}

// resultWithGateways is prevResult with the configured gateways in its default
// routes, because the interface plugin's CHECK compares its routes with the
// result.
func (r *role) resultWithGateways(prev *roles.Result) *roles.Result {
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

// addRule adds the rule that selects the table for packets from an address.
func (w *builder) addRule(ip attach.IPConfig, table int) {
	w.spec.Add(netops.SourceRule(ip.Address.Addr(), table))
}

// addTables fills a table for each address and adds the rules that select them.
func (w *builder) addTables() {
	chosen := make([]int, len(w.ips))
	for i, ip := range w.ips {
		chosen[i] = w.chooseTable(ip, chosen[:i])
		w.fillTable(ip, chosen[i])
	}
	for i, ip := range w.ips {
		w.addRule(ip, chosen[i])
	}
}

// chooseTable is the table of an address: on ADD the next free table, on CHECK
// the table that the address's rule selects.
func (w *builder) chooseTable(ip attach.IPConfig, chosen []int) int {
	if w.in.Prev != nil {
		for _, rule := range w.Rules {
			if rule.From.IsSingleIP() && rule.From.Addr() == ip.Address.Addr() && w.isOwn(rule.Table) {
				return rule.Table
			}
		}
	}
	return netops.FreeTable(netops.FirstTable, w.Rules, w.Routes, chosen)
}

// mainRoutes are the interface's routes in the main table, without link-local
// and multicast routes, which apply to every address of the link.
func (w *builder) mainRoutes() []netops.Route {
	var all []netops.Route
	for _, r := range w.Routes {
		if r.Link == w.in.Key.IfName && r.Table == unix.RT_TABLE_MAIN && !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			all = append(all, r)
		}
	}
	return all
}

// fillTable adds the routes of an address's table. Routes without a gateway
// come first, because the gateways of the others are reached through them.
func (w *builder) fillTable(ip attach.IPConfig, table int) {
	own := w.copiedRoutes(ip, table)
	if w.in.Prev != nil {
		own = w.expectedRoutes(ip, table)
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
		reached := func(r *netops.Route) bool { return !r.Via.IsValid() && r.Dst.Contains(gw) }
		own = append(own, &netops.Route{
			In: netops.Container, Link: w.in.Key.IfName, Dst: roles.DefaultDst(is4), Via: gw, Table: table,
			OnLink: !gw.IsLinkLocalUnicast() && !slices.ContainsFunc(own, reached),
		})
	}
	if !is4 {
		own = append(own, &netops.Route{In: netops.Container, Link: w.in.Key.IfName, Dst: netip.MustParsePrefix("fe80::/64"), Table: table})
	}
	sorting.Stable(own, func(a, b *netops.Route) int { return gatewayOrder(a) - gatewayOrder(b) })
	for _, r := range own {
		w.spec.Add(r)
	}
}

// gatewayOrder is 0 for a route without a gateway and 1 for a route with one,
// which must be added after it.
func gatewayOrder(r *netops.Route) int {
	if r.Via.IsValid() {
		return 1
	}
	return 0
}

// copiedRoutes are the routes of the main table that apply to an address.
func (w *builder) copiedRoutes(ip attach.IPConfig, table int) []*netops.Route {
	var all []*netops.Route
	for _, r := range w.mainRoutes() {
		if w.belongs(&r, ip) {
			r.In, r.Table = netops.Container, table
			all = append(all, &r)
		}
	}
	return all
}

// expectedRoutes are the routes that an address's table must contain according
// to prevResult. The gateway of the subnet's route is not compared: the route
// has one only on a point-to-point link.
func (w *builder) expectedRoutes(ip attach.IPConfig, table int) []*netops.Route {
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

// belongs reports whether a route belongs to an address. It does if its
// preferred source, or else its gateway, is in the address's subnet or in the
// subnet of no address of the interface. A route without both belongs to every
// address of its family.
func (w *builder) belongs(r *netops.Route, ip attach.IPConfig) bool {
	if r.Dst.Addr().Is4() != ip.Address.Addr().Is4() {
		return false
	}
	addr := r.Via
	if r.Src.IsValid() {
		addr = r.Src
	}
	if !addr.IsValid() || ip.Address.Contains(addr) {
		return true
	}
	return !slices.ContainsFunc(w.ips, func(other attach.IPConfig) bool { return other.Address.Contains(addr) })
}

// removeFromMain removes the routes from the main table, those with a gateway
// first. CHECK ignores the routes of router advertisements, because routers
// send them again.
func (w *builder) removeFromMain() {
	all := w.mainRoutes()
	sorting.Stable(all, func(a, b netops.Route) int { return gatewayOrder(&b) - gatewayOrder(&a) })
	for _, r := range all {
		if w.isHint(&r) || w.in.Prev != nil && r.Protocol == unix.RTPROT_RA {
			continue
		}
		w.spec.Add(&netops.Route{
			In: netops.Container, Link: r.Link, Dst: r.Dst, Via: r.Via, Priority: r.Priority, Table: unix.RT_TABLE_MAIN, Absent: true,
		})
	}
}

// isHint reports whether a route is a source hint that stays in the main table.
func (w *builder) isHint(r *netops.Route) bool {
	return w.conf.AddSourceHints && !r.Via.IsValid() && r.Src.IsValid() && w.isSubnet(r.Dst)
}

// isSubnet reports whether dst is exactly the subnet of one of the interface's
// addresses.
func (w *builder) isSubnet(dst netip.Prefix) bool {
	return slices.ContainsFunc(w.ips, func(ip attach.IPConfig) bool { return !ip.Address.IsSingleIP() && ip.Address.Masked() == dst })
}

// addHints adds to the main table a route with a preferred source for each
// subnet of the interface: the first address in the subnet. The kernel's IPv4
// routes have one already.
func (w *builder) addHints() {
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
		current := &w.Routes[i]
		if w.isHint(current) && w.in.Prev == nil {
			continue
		}
		w.spec.Add(&netops.Route{
			In: netops.Container, Link: w.in.Key.IfName, Dst: subnet, Src: ip.Address.Addr(),
			Priority: current.Priority, Protocol: current.Protocol, Table: unix.RT_TABLE_MAIN,
		})
	}
}
