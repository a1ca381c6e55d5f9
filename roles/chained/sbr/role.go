package sbr

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the sbr role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"sbr"},
		Summary:   "source based routing: replies leave by the interface of their address",
		Reference: "v1.9.1",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants is always true: the role has no key that it needs.
func (r *role) Wants() bool { return true }

// Shared is nothing: rules and tables are the container's.
func (r *role) Shared() []string { return nil }

// NeedsNetnsLock marks that tables are chosen.
func (r *role) NeedsNetnsLock() {}

// observed is what Build needs to know of the container.
type observed struct {
	// Rules are those of both families, Routes those of all tables.
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
	if o.Rules, err = h.Net.Rules(ctx, container); err != nil {
		return err
	}
	o.Routes, err = h.Net.Routes(ctx, container, 0)
	in.Observed = o
	return err
}

// CleanLegacy removes the rules that the reference plugin, or an ADD whose state was
// lost, left for the addresses of the interface. Tables go with the interface.
func (r *role) CleanLegacy(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
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

// isOwn tells whether the role may have made a rule for the table.
func (r *role) isOwn(table int) bool {
	if r.conf.Table != nil {
		return table == *r.conf.Table
	}
	return table >= firstTable && !isReserved(table)
}

// firstTable is where the search for free tables begins.
const firstTable = 100

// isReserved tells whether the kernel has a meaning for the table.
func isReserved(table int) bool {
	return table >= unix.RT_TABLE_DEFAULT && table <= unix.RT_TABLE_LOCAL
}
