package multi

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Plan returns what Add would do for all networks of the pod, the default network first.
func (m *handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	out := &roles.Plan{}
	if err := m.checkReady(roles.ErrTryAgain); err != nil {
		out.Notes = append(out.Notes, "ADD would fail now: "+err.Error())
	}
	api, err := m.api()
	if err != nil {
		return nil, err
	}
	all, err := m.resolve(ctx, req, api)
	if err != nil {
		return nil, err
	}
	c := m.newRunner(h, req)
	for i := range all {
		result, err := c.plan(ctx, &all[i], out)
		if err != nil {
			return nil, withNetwork(&all[i], err)
		}
		if i == 0 {
			out.Result = result
		}
		if len(all[i].Gateways)+len(all[i].Routes) > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("network %q: the routes of its annotation follow when all networks are attached", all[i].Name))
		}
	}
	return out, nil
}

// plan adds the plan of one network and returns the planned result.
func (c *runner) plan(ctx context.Context, n *store.Delegate, out *roles.Plan) (*roles.Result, error) {
	if link, err := hostLink(n.List); err == nil && link != nil && n.HostLink != "" {
		p, err := c.h.Net.Plan(ctx, netops.Spec{Objects: []netops.Object{link}}, nil)
		if err != nil {
			return nil, err
		}
		out.Changes = append(out.Changes, p.Changes...)
		if len(p.Changes) > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("network %q: its plugins cannot be planned before interface %q exists", n.Name, link.Name))
			return nil, nil
		}
	}
	l, call, err := c.list(n)
	if err != nil {
		return nil, err
	}
	plans, err := l.Plan(ctx, c.h.Delegate, call)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		out.Changes = append(out.Changes, p.Changes...)
		out.Placeholder = out.Placeholder || p.Placeholder
		for _, note := range p.Notes {
			out.Notes = append(out.Notes, fmt.Sprintf("network %q: %s", n.Name, note))
		}
	}
	return plans[len(plans)-1].Result, nil
}
