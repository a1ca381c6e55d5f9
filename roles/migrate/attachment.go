// Package migrate takes over from the reference plugins: it reads, checks and
// removes the interfaces, rules and address files that they left on a node.
package migrate

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// ReferenceAttachment describes an attachment that the reference plugins may have made.
// It contains the addresses of the attachment's result and leases, without those that
// another attachment has now, and the container's other addresses.
func ReferenceAttachment(ctx context.Context, h *roles.Host, key store.Key, prev *roles.Result) (netops.ReferencePluginAttachment, error) {
	f := netops.ReferencePluginAttachment{Network: key.Network, ContainerID: key.ContainerID, IfName: key.IfName, Addresses: resultAddresses(prev, key.IfName)}
	held := map[netip.Addr]bool{}
	note := func(owner store.Key, a netip.Addr) {
		switch {
		case owner == key:
			f.Addresses = append(f.Addresses, a)
			return
		case owner.ContainerID == key.ContainerID:
			f.Others = append(f.Others, a)
			f.Shares = f.Shares || owner.Network == key.Network
		}
		held[a] = true
	}
	err := h.Store.View(ctx, func(tx *store.Tx) error { return eachAddress(tx, note) })
	sorting.Func(f.Addresses, netip.Addr.Compare)
	f.Addresses = slices.DeleteFunc(slices.Compact(f.Addresses), func(a netip.Addr) bool { return held[a] })
	return f, err
}

// ReferenceAddresses returns ReferenceAttachment's addresses only. It is fast if neither
// the result nor a lease has an address.
func ReferenceAddresses(ctx context.Context, h *roles.Host, key store.Key, prev *roles.Result) ([]netip.Addr, error) {
	if len(resultAddresses(prev, key.IfName)) == 0 {
		leases := 0
		err := h.Store.View(ctx, func(tx *store.Tx) error {
			own, err := tx.LeasesOf(key)
			leases = len(own)
			return err
		})
		if err != nil || leases == 0 {
			return nil, err
		}
	}
	f, err := ReferenceAttachment(ctx, h, key, prev)
	return f.Addresses, err
}

// resultAddresses returns the addresses of a container's interface in a result.
func resultAddresses(r *roles.Result, ifName string) []netip.Addr {
	if r == nil {
		return nil
	}
	var out []netip.Addr
	for _, ip := range r.IPs {
		if n := ip.Interface; n != nil {
			if *n < 0 || *n >= len(r.Interfaces) || r.Interfaces[*n].Name != ifName || r.Interfaces[*n].Sandbox == "" {
				continue
			}
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}
