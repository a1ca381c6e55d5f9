package vrf

import (
	"context"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the vrf role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"vrf"},
		Summary:   "put the container's interface into a VRF",
		Reference: "v1.9.1",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained, NetnsLocker and LegacyCleaner for one configuration.
type role struct{ conf *Conf }

// Wants is always true: the interface goes into the VRF.
func (r *role) Wants() bool { return true }

// Shared is nothing: a VRF is the container's own.
func (r *role) Shared() []string { return nil }

// NeedsNetnsLock marks the role: attachments of one container may share a VRF, or look
// for free tables.
func (r *role) NeedsNetnsLock() {}

// observed is what Build needs to know of the container's namespace.
type observed struct {
	// Table is that of the VRF that there is, 0 for none.
	Table int
	// Used are the tables that VRFs have or routes are in.
	Used []int
	// IPv6 tells that the interface has addresses which the kernel would drop.
	IPv6 bool
	// Routes are those over the interface that the kernel does not make anew.
	Routes []netops.Route
}

// Observe reads which tables are taken, and what the interface would lose.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	var o observed
	defer func() { in.Observed = o }()
	if container == nil {
		return nil
	}
	links, err := h.Net.Links(ctx, container)
	if err != nil {
		return err
	}
	for _, l := range links {
		switch {
		case l.Kind == "vrf":
			o.Used = append(o.Used, l.Table)
			if l.Name == r.conf.VRFName {
				o.Table = l.Table
			}
		case l.Name == in.Key.IfName:
			o.IPv6 = slices.ContainsFunc(l.Addresses, isGlobal6)
		}
	}
	routes, err := h.Net.Routes(ctx, container, 0)
	if err != nil {
		return err
	}
	for _, route := range routes {
		o.Used = append(o.Used, route.Table)
		if route.Link == in.Key.IfName && moves(route, in.Prev) {
			route.In = netops.Container
			o.Routes = append(o.Routes, route)
		}
	}
	return nil
}

// moves tells whether a route over the interface has to be taken along. For
// CHECK it is one of the result that was left behind: others may add theirs.
func moves(route netops.Route, prev *roles.Result) bool {
	switch {
	case route.Protocol == unix.RTPROT_KERNEL, route.Protocol == unix.RTPROT_REDIRECT, route.Protocol == unix.RTPROT_RA:
		return false
	case prev == nil:
		return route.Table != unix.RT_TABLE_LOCAL
	}
	return route.Table == unix.RT_TABLE_MAIN && slices.ContainsFunc(prev.Routes, func(r *types.Route) bool {
		dst, ok := attach.Prefix(r.Dst)
		return ok && dst.Masked() == route.Dst
	})
}

// CleanLegacy takes the interface out of the VRF that the reference plugin, or an
// ADD whose state was lost, put it into.
func (r *role) CleanLegacy(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if r.conf.Validate() != nil || in.Key.IfName == r.conf.VRFName {
		return nil // no ADD took such a configuration
	}
	var spec netops.Spec
	spec.Add(&netops.VRF{In: netops.Container, Name: r.conf.VRFName, Link: in.Key.IfName})
	return h.Net.Remove(ctx, spec, container)
}
