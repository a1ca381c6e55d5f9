package vrf

import (
	"context"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the vrf role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:     []string{"vrf"},
		Summary:   "put the container's interface into a VRF",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained, NetnsLocker and ReferenceCleaner for one configuration.
type role struct{ conf *Conf }

// Wants is always true: the role always attaches the interface to the VRF.
func (r *role) Wants() bool { return true }

// Shared is empty: a VRF belongs to the container.
func (r *role) Shared() []string { return nil }

// NeedsNetnsLock marks that the role chooses free tables, and that attachments of one
// container may share a VRF.
func (r *role) NeedsNetnsLock() {}

// observed is the state of the container's namespace that Build needs.
type observed struct {
	// Table is the table of the existing VRF, or 0 if it does not exist.
	Table int
	// Used are the tables of VRFs and of routes.
	Used []int
	// IPv6 reports that the interface has IPv6 addresses that the kernel would
	// remove when the interface is attached to the VRF.
	IPv6 bool
	// Routes are the interface's routes that the kernel does not restore
	// itself.
	Routes []netops.Route
}

// Observe reads which tables are in use, and the addresses and routes that the
// interface would lose.
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
		if route.Link == in.Key.IfName && mustMove(route, in.Prev) {
			route.In = netops.Container
			o.Routes = append(o.Routes, route)
		}
	}
	return nil
}

// mustMove reports whether a route of the interface must be moved to the VRF's
// table. On CHECK it is a route of prevResult that is still in the main table;
// other programs may add their own routes.
func mustMove(route netops.Route, prev *roles.Result) bool {
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

// CleanReference detaches the interface from the VRF that the reference plugin, or an
// ADD without a record, attached it to.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if r.conf.Validate() != nil || in.Key.IfName == r.conf.VRFName {
		return nil // ADD refuses such a configuration
	}
	var spec netops.Spec
	spec.Add(&netops.VRF{In: netops.Container, Name: r.conf.VRFName, Link: in.Key.IfName})
	return h.Net.Remove(ctx, spec, container)
}
