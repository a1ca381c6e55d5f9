package vrf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// Wire takes the routes away, puts the interface into the VRF and makes the
// routes again, in its table: the kernel would drop them, and not bring them
// back when the interface leaves. Those that lead to gateways come first in the
// making and last in the taking away, whose inverse runs backwards.
func (r *role) Wire(in *attach.Input) (*attach.Wiring, error) {
	o, _ := in.Observed.(observed)
	w := new(attach.Wiring)
	if in.Prev == nil && o.IPv6 {
		r.keepAddresses(w, in.Key.IfName)
	}
	routes := slices.SortedStableFunc(slices.Values(o.Routes), func(a, b netops.Route) int {
		return cmp.Compare(a.Via.BitLen(), b.Via.BitLen())
	})
	for _, route := range slices.Backward(routes) {
		route.Absent = true
		w.Spec.Add(&route)
	}
	table := r.table(&o)
	w.Spec.Add(&netops.VRF{In: netops.Container, Name: r.conf.VRFName, Table: table, Link: in.Key.IfName, Alias: record.VRFAlias})
	for _, route := range routes {
		if route.Table == unix.RT_TABLE_MAIN {
			route.Table = table
		}
		w.Spec.Add(&route)
	}
	return w, nil
}

// keepAddresses keeps the IPv6 addresses while the interface is down for a
// moment. They were found to be no duplicates when they were added.
func (r *role) keepAddresses(w *attach.Wiring, ifName string) {
	for _, s := range []struct{ name, value string }{{"keep_addr_on_down", "1"}, {"accept_dad", "0"}} {
		w.Spec.Add(&netops.Sysctl{
			In: netops.Container, Key: fmt.Sprintf("net/ipv6/conf/%s/%s", ifName, s.name), Value: s.value, Optional: true,
		})
	}
}

// table is the one asked for, that of the VRF that there is, or the first free.
func (r *role) table(o *observed) int {
	switch {
	case r.conf.Table != 0:
		return int(r.conf.Table)
	case o.Table != 0:
		return o.Table
	}
	reserved := []int{unix.RT_TABLE_DEFAULT, unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL}
	table := 1
	for slices.Contains(o.Used, table) || slices.Contains(reserved, table) {
		table++
	}
	return table
}

// isGlobal6 tells whether an address is one that the kernel does not make anew.
func isGlobal6(p netip.Prefix) bool { return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() }
