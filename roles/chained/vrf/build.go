package vrf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Build removes the interface's routes, attaches the interface to the VRF and
// adds the routes again, to the VRF's table. The kernel would drop them at the
// attachment, and would not restore them when the interface is detached. Routes
// that reach a gateway are added first and removed last; undo runs in the
// reverse order.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, _ := in.Observed.(observed)
	w := new(attach.Desired)
	if in.Prev == nil && o.IPv6 {
		r.keepAddresses(w, in.Key.IfName)
	}
	routes := sorting.Sorted(o.Routes, func(a, b netops.Route) int {
		return cmp.Compare(a.Via.BitLen(), b.Via.BitLen())
	})
	for _, route := range slices.Backward(routes) {
		route.Absent = true
		w.Spec.Add(&route)
	}
	table := r.table(&o)
	w.Spec.Add(&netops.VRF{In: netops.Container, Name: r.conf.VRFName, Table: table, Link: in.Key.IfName, Alias: attachment.VRFAlias})
	for _, route := range routes {
		if route.Table == unix.RT_TABLE_MAIN {
			route.Table = table
		}
		w.Spec.Add(&route)
	}
	return w, nil
}

// keepAddresses keeps the IPv6 addresses while the kernel takes the interface
// down and up. Duplicate address detection is skipped: it was done when the
// addresses were added.
func (r *role) keepAddresses(w *attach.Desired, ifName string) {
	for _, s := range []struct{ name, value string }{{"keep_addr_on_down", "1"}, {"accept_dad", "0"}} {
		w.Spec.Add(&netops.Sysctl{
			In: netops.Container, Key: fmt.Sprintf("net/ipv6/conf/%s/%s", ifName, s.name), Value: s.value, Optional: true,
		})
	}
}

// table is the configured table, else the table of the existing VRF, else the
// first free one.
func (r *role) table(o *observed) int {
	switch {
	case r.conf.Table != 0:
		return int(r.conf.Table)
	case o.Table != 0:
		return o.Table
	}
	return netops.FreeTable(1, nil, nil, o.Used)
}

// isGlobal6 reports whether an address is an IPv6 address that the kernel does
// not restore itself.
func isGlobal6(p netip.Prefix) bool { return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() }
