package attachment

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// ByReference describes an attachment that the reference plugins may have made.
// It contains the addresses of the attachment's result and leases, without those that
// another attachment has now, and the container's other addresses.
func ByReference(ctx context.Context, h *roles.Host, key store.Key, prev *roles.Result) (netops.ReferencePluginAttachment, error) {
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
	err := h.Store.View(ctx, func(tx *store.Tx) error { return EachAddress(tx, note) })
	sorting.Func(f.Addresses, netip.Addr.Compare)
	f.Addresses = slices.DeleteFunc(slices.Compact(f.Addresses), func(a netip.Addr) bool { return held[a] })
	return f, err
}

// ReferenceAddresses returns ByReference's addresses only. It is fast if neither
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
	f, err := ByReference(ctx, h, key, prev)
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

// EachAddress calls each for the addresses of leases, then for those of attachments.
func EachAddress(tx *store.Tx, each func(owner store.Key, a netip.Addr)) error {
	leases, err := Leases(tx, "")
	for _, l := range leases {
		each(l.Owner, l.Address)
	}
	if err != nil {
		return err
	}
	atts, err := tx.Attachments("")
	for _, a := range atts {
		for _, p := range a.Addresses {
			each(a.Key, p.Addr())
		}
	}
	return err
}

// ValidByReference returns GC's list of valid attachments in netops's type.
func ValidByReference(req *roles.Request) []netops.ReferencePluginAttachment {
	out := make([]netops.ReferencePluginAttachment, len(req.Valid))
	for i, v := range req.Valid {
		out[i] = netops.ReferencePluginAttachment{Network: req.Network, ContainerID: v.ContainerID, IfName: v.IfName}
	}
	return out
}
