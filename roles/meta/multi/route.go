package multi

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// route makes the routes that concern several networks: the default route if a network requests it,
// and source-based routes for a network's addresses.
func (c *runner) route(ctx context.Context, all []store.Delegate, ns *netops.Namespace) error {
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
			p.setDefaultRoute(n.IfName, gw)
		}
		p.addPolicyRoutes(n, c.result(n.IfName))
	}
	if err := c.setResultRoutes(all); err != nil {
		return err
	}
	return c.apply(ctx, p.spec, ns)
}

// apply records and applies the changes for a spec.
func (c *runner) apply(ctx context.Context, spec netops.Spec, ns *netops.Namespace) error {
	plan, err := c.h.Net.Plan(ctx, spec, ns)
	if err != nil {
		return err
	}
	before, err := c.changes()
	if err != nil {
		return err
	}
	c.out.Changes, err = coldjson.Marshal(append(before, plan.Changes...))
	if err != nil {
		return fmt.Errorf("encode changes: %w", err)
	}
	if err := recordOutcome(ctx, c.h, c.out); err != nil {
		return err
	}
	return c.h.Net.Apply(ctx, plan, ns)
}

// changes returns the recorded changes.
func (c *runner) changes() ([]netops.Change, error) {
	if len(c.out.Changes) == 0 {
		return nil, nil
	}
	var all []netops.Change
	if err := coldjson.Unmarshal(c.out.Changes, &all); err != nil {
		return nil, fmt.Errorf("decode recorded changes: %w: %w", roles.ErrDecode, err)
	}
	return all, nil
}

// unroute removes the routes that route added. It does not restore removed default routes, because
// their interfaces are removed, too.
func (c *runner) unroute(ctx context.Context, request *store.Delegation, ns *netops.Namespace) error {
	all, err := c.changes()
	added := slices.DeleteFunc(all, func(ch netops.Change) bool { return ch.Undo == nil || ch.Undo.Verb != netops.VerbDel })
	if err != nil || len(added) == 0 {
		return err
	}
	return attachment.InRecordedNetns(c.h, &store.Attachment{Netns: request.Netns}, ns, func(ns *netops.Namespace) error {
		return c.h.Net.Undo(ctx, added, ns)
	})
}

// checkRoutes compares the routes with the recorded ones.
func (c *runner) checkRoutes(ctx context.Context, ns *netops.Namespace) error {
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

// router computes the changes from the existing routes and rules.
type router struct {
	routes []netops.Route
	rules  []netops.Rule
	taken  []int
	spec   netops.Spec
}

// setDefaultRoute makes the route through gw the only default route of its family.
func (p *router) setDefaultRoute(link string, gw netip.Addr) {
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
		p.spec.Add(&netops.Route{In: netops.Container, Link: link, Dst: roles.DefaultDst(gw.Is4()), Via: gw})
	}
}

// addPolicyRoutes adds, for each address of an interface with source-based routes, a routing table
// and a rule.
func (p *router) addPolicyRoutes(n *store.Delegate, r *roles.Result) {
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
		table := netops.FreeTable(netops.FirstTable, p.rules, p.routes, p.taken)
		p.taken = append(p.taken, table)
		for _, rt := range own {
			rt.Table = table
			p.spec.Add(rt)
		}
		p.spec.Add(netops.SourceRule(addr, table))
	}
}

// setResultRoutes updates the default routes in the results. CHECK compares with them, and the
// runtime gets the first result.
func (c *runner) setResultRoutes(all []store.Delegate) error {
	for i := range all {
		for _, gw := range all[i].Gateways {
			for j := range all {
				r := c.result(all[j].IfName)
				if r == nil {
					continue
				}
				r.Routes = slices.DeleteFunc(r.Routes, func(rt *types.Route) bool { return isDefault(rt, gw) })
				if i == j {
					r.Routes = append(r.Routes, &types.Route{Dst: roles.IPNet(roles.DefaultDst(gw.Is4())), GW: gw.AsSlice()})
				}
				if err := c.setResult(all[j].IfName, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isDefault reports whether a route of a result is a default route of the gateway's family in the
// main table.
func isDefault(rt *types.Route, gw netip.Addr) bool {
	ones, bits := rt.Dst.Mask.Size()
	return ones == 0 && bits == gw.BitLen() && (rt.Table == nil || *rt.Table == unix.RT_TABLE_MAIN)
}
