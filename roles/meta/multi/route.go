package multi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// firstTable is where the search for free routing tables begins.
const firstTable = 100

// route makes the routes that concern several networks: the default route where a
// network claims it, and routes for what one network's addresses send.
func (c *course) route(ctx context.Context, all []store.Delegate, ns *netops.Namespace) error {
	wants := func(n store.Delegate) bool { return len(n.Gateways)+len(n.Routes) > 0 }
	if !slices.ContainsFunc(all, wants) {
		return nil
	}
	routes, err := c.h.Net.Routes(ctx, ns, 0)
	if err != nil {
		return err
	}
	rules, err := c.h.Net.Rules(ctx, ns)
	if err != nil {
		return err
	}
	p := &router{routes: routes, rules: rules}
	for i := range all {
		n := &all[i]
		for _, gw := range n.Gateways {
			p.claim(n.IfName, gw)
		}
		p.policy(n, c.result(n.IfName))
	}
	if err := c.tellRoutes(all); err != nil {
		return err
	}
	return c.apply(ctx, p.spec, ns)
}

// apply records the changes that lead to a spec, and makes them.
func (c *course) apply(ctx context.Context, spec netops.Spec, ns *netops.Namespace) error {
	changes, err := c.h.Net.Plan(ctx, spec, ns)
	if err != nil {
		return err
	}
	before, err := c.changes()
	if err != nil {
		return err
	}
	if c.out.Changes, err = coldjson.Marshal(append(before, changes...)); err != nil {
		return fmt.Errorf("encode changes: %w", err)
	}
	if err := put(ctx, c.h, c.out); err != nil {
		return err
	}
	return c.h.Net.Apply(ctx, changes, ns)
}

// changes are those recorded.
func (c *course) changes() ([]netops.Change, error) {
	if len(c.out.Changes) == 0 {
		return nil, nil
	}
	var all []netops.Change
	if err := coldjson.Unmarshal(c.out.Changes, &all); err != nil {
		return nil, fmt.Errorf("recorded changes: %w: %w", roles.ErrDecode, err)
	}
	return all, nil
}

// unroute takes away what route added. Routes that it took away are not put back:
// they went with their interfaces, or will.
func (c *course) unroute(ctx context.Context, asked *store.Delegation, ns *netops.Namespace) error {
	all, err := c.changes()
	added := slices.DeleteFunc(all, func(ch netops.Change) bool { return ch.Undo == nil || ch.Undo.Verb != netops.VerbDel })
	if err != nil || len(added) == 0 {
		return err
	}
	return record.WithRecorded(c.h, &store.Attachment{Netns: asked.Netns}, ns, func(ns *netops.Namespace) error {
		return c.h.Net.Undo(ctx, added, ns)
	})
}

// checkRoutes compares the routes with what was recorded.
func (c *course) checkRoutes(ctx context.Context, ns *netops.Namespace) error {
	all, err := c.changes()
	if err != nil {
		return err
	}
	var spec netops.Spec
	for _, ch := range all {
		if r, ok := ch.Do.Object.(*netops.Route); ok && ch.Do.Verb == netops.VerbDel {
			away := *r
			away.Absent = true
			spec.Add(&away)
			continue
		}
		spec.Add(ch.Do.Object)
	}
	diffs, err := c.h.Net.Verify(ctx, spec, ns)
	if err != nil {
		return err
	}
	return roles.Differences(diffs)
}

// router computes routes from those that are there.
type router struct {
	routes []netops.Route
	rules  []netops.Rule
	taken  []int
	spec   netops.Spec
}

// claim makes the way by a gateway the only default route of its family.
func (p *router) claim(link string, gw netip.Addr) {
	there := false
	for _, r := range p.routes {
		if r.Table != unix.RT_TABLE_MAIN || r.Dst.Bits() != 0 || r.Dst.Addr().Is4() != gw.Is4() {
			continue
		}
		if r.Link == link && r.Via == gw {
			there = true
			continue
		}
		p.spec.Add(&netops.Route{In: netops.Container, Link: r.Link, Dst: r.Dst, Via: r.Via, Priority: r.Priority, Table: unix.RT_TABLE_MAIN, Absent: true})
	}
	if !there {
		p.spec.Add(&netops.Route{In: netops.Container, Link: link, Dst: everything(gw), Via: gw})
	}
}

// everything is the destination of default routes of an address's family.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// policy makes a table for each address of an interface with routes of its own, and
// the rule that leads there.
func (p *router) policy(n *store.Delegate, r *roles.Result) {
	if r == nil {
		return
	}
	for _, ip := range r.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		var own []*netops.Route
		for _, rt := range n.Routes {
			if rt.Dst.Addr().Is4() == addr.Is4() {
				own = append(own, &netops.Route{In: netops.Container, Link: n.IfName, Dst: rt.Dst, Via: rt.GW})
			}
		}
		if len(own) == 0 {
			continue
		}
		family := unix.AF_INET
		if addr.Is6() {
			family = unix.AF_INET6
		}
		table := p.table()
		for _, rt := range own {
			rt.Table = table
			p.spec.Add(rt)
		}
		p.spec.Add(&netops.Rule{In: netops.Container, Family: family, From: netip.PrefixFrom(addr, addr.BitLen()), Table: table})
	}
}

// table is the next free one; the kernel has a meaning for 253 to 255.
func (p *router) table() int {
	t := firstTable
	for t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL || slices.Contains(p.taken, t) ||
		slices.ContainsFunc(p.rules, func(r netops.Rule) bool { return r.Table == t }) ||
		slices.ContainsFunc(p.routes, func(r netops.Route) bool { return r.Table == t }) {
		t++
	}
	p.taken = append(p.taken, t)
	return t
}

// tellRoutes has the results tell the default routes as they are: CHECK compares
// with them, and the runtime reads the first.
func (c *course) tellRoutes(all []store.Delegate) error {
	for i := range all {
		for _, gw := range all[i].Gateways {
			for j := range all {
				r := c.result(all[j].IfName)
				if r == nil {
					continue
				}
				r.Routes = slices.DeleteFunc(r.Routes, func(rt *types.Route) bool { return isDefault(rt, gw) })
				if i == j {
					dst := everything(gw)
					r.Routes = append(r.Routes, &types.Route{Dst: net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(0, gw.BitLen())}, GW: gw.AsSlice()})
				}
				if err := c.took(all[j].IfName, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isDefault tells whether a route of a result is a default route of a gateway's
// family, in the main table.
func isDefault(rt *types.Route, gw netip.Addr) bool {
	ones, bits := rt.Dst.Mask.Size()
	return ones == 0 && bits == gw.BitLen() && (rt.Table == nil || *rt.Table == unix.RT_TABLE_MAIN)
}
