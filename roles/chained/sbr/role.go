package sbr

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the sbr role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"sbr"},
		Summary:   "source-based routing: packets leave through the interface of their source address",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants is always true: the role has no required key.
func (r *role) Wants() bool { return true }

// Shared is empty: rules and tables belong to the container.
func (r *role) Shared() []string { return nil }

// NeedsNetnsLock marks that the role chooses free tables.
func (r *role) NeedsNetnsLock() {}

// observed is the state of the container's namespace that Build needs.
type observed struct {
	// Rules are the rules of both address families. Routes are the routes of
	// all tables.
	Rules  []netops.Rule
	Routes []netops.Route
}

// Observe reads the container's rules and routes.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var o observed
	in.Observed = o
	if container == nil {
		return nil
	}
	var err error
	o.Rules, err = h.Net.Rules(ctx, container)
	if err != nil {
		return err
	}
	o.Routes, err = h.Net.Routes(ctx, container, 0)
	in.Observed = o
	return err
}

// CleanReference removes the rules for the interface's addresses that the reference
// plugin, or an ADD without a record, left. The tables' routes are removed with
// the interface.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if container == nil {
		return nil
	}
	addrs, err := h.Net.Addresses(ctx, container, in.Key.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := h.Net.Rules(ctx, container)
	if err != nil {
		return err
	}
	var left netops.Spec
	for _, rule := range rules {
		of := func(p netip.Prefix) bool { return rule.From.IsSingleIP() && rule.From.Addr() == p.Addr() }
		if slices.ContainsFunc(addrs, of) && r.isOwn(rule.Table) {
			rule.In = netops.Container
			left.Add(&rule)
		}
	}
	return h.Net.Remove(ctx, left, container)
}

// isOwn reports whether the role may have added a rule for the table.
func (r *role) isOwn(table int) bool {
	if r.conf.Table != nil {
		return table == *r.conf.Table
	}
	return table >= netops.FirstTable && !netops.IsKernelTable(table)
}
