// Package leasing has what IPAM roles share that keep leases in this node's store.
package leasing

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Home says to which NIC and subnet of this node a cloud address belongs.
type Home struct {
	Address netip.Addr
	// NIC has only its MAC, and Subnet is zero, if the cloud does not list the
	// address any more.
	NIC    store.CloudNIC
	Subnet store.CloudSubnet
	// NICs are all NICs of the same source.
	NICs []store.CloudNIC
}

// CloudHome returns the NIC and subnet of each cloud address of an attachment, IPv4
// first. It reads only the store.
func CloudHome(ctx context.Context, h *roles.Host, key store.Key) ([]Home, error) {
	var leases []store.Lease
	sources := map[string]*store.CloudSource{}
	err := h.Store.View(ctx, func(tx *store.Tx) (err error) {
		if leases, err = cloudLeases(tx, key); err != nil {
			return err
		}
		for _, l := range leases {
			sources[l.Source], err = tx.CloudSource(l.Source)
			if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrDamaged) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var homes []Home
	for _, l := range leases {
		home := Home{Address: l.Address, NIC: store.CloudNIC{MAC: l.NIC}}
		if sources[l.Source] == nil {
			sources[l.Source] = keptSource(ctx, h, l.Source)
		}
		home.find(sources[l.Source])
		homes = append(homes, home)
	}
	return homes, nil
}

// CloudNICs returns the MAC of the NIC of each cloud address of an attachment, IPv4
// first. Unlike CloudHome it does not read the cloud's replies.
func CloudNICs(ctx context.Context, h *roles.Host, key store.Key) ([]string, error) {
	var macs []string
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		leases, err := cloudLeases(tx, key)
		for _, l := range leases {
			macs = append(macs, l.NIC)
		}
		return err
	})
	return macs, err
}

// cloudLeases returns an attachment's leases of cloud addresses.
func cloudLeases(tx *store.Tx, key store.Key) ([]store.Lease, error) {
	leases, err := tx.LeasesOf(key)
	return slices.DeleteFunc(leases, func(l store.Lease) bool { return l.Source == "" }), err
}

// keptSource returns a source as it was before a reboot, for use until the cloud has
// been asked again. One that cannot be read is returned empty.
func keptSource(ctx context.Context, h *roles.Host, name string) *store.CloudSource {
	kept := &store.CloudSource{}
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		s, err := tx.CloudSource(name)
		if err == nil {
			kept = s
		}
		return err
	})
	if err != nil {
		h.Log.Debug("look up what the cloud said before the reboot", "source", name, "error", err)
	}
	return kept
}

// find looks for the address at its NIC: in the subnet that lists it, else in the one
// whose prefix contains it.
func (home *Home) find(source *store.CloudSource) {
	named := func(s store.CloudSubnet) bool { return s.Gives(home.Address) }
	belongs := func(s store.CloudSubnet) bool { return s.Prefix.Contains(home.Address) }
	for _, is := range []func(store.CloudSubnet) bool{named, belongs} {
		for _, nic := range source.NICs {
			if nic.MAC != home.NIC.MAC {
				continue
			}
			if i := slices.IndexFunc(nic.Subnets, is); i >= 0 {
				home.NIC, home.Subnet, home.NICs = nic, nic.Subnets[i], source.NICs
				return
			}
		}
	}
}
