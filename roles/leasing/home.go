// Package leasing is what IPAM roles with leases in this node's store have in common.
package leasing

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Home is where an address of the cloud's network is at home on this node.
type Home struct {
	Address netip.Addr
	// NIC has only its MAC, and Subnet is zero, when the cloud does not name the
	// address any more.
	NIC    store.CloudNIC
	Subnet store.CloudSubnet
	// NICs are all that the same source names.
	NICs []store.CloudNIC
}

// CloudHome tells of every address that an attachment has of a cloud which NIC
// and subnet it is of; IPv4 first. An attachment without one has no homes. It
// reads the store only.
func CloudHome(ctx context.Context, h *roles.Host, key store.Key) ([]Home, error) {
	var homes []Home
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		leases, err := tx.LeasesOf(key)
		if err != nil {
			return err
		}
		leases = slices.DeleteFunc(leases, func(l store.Lease) bool { return l.Source == "" })
		for _, l := range leases {
			home := Home{Address: l.Address, NIC: store.CloudNIC{MAC: l.NIC}}
			// What cannot be read, or is not there, is a source that names nothing.
			if source, err := tx.CloudSource(l.Source); err == nil {
				home.find(source)
			}
			homes = append(homes, home)
		}
		return nil
	})
	return homes, err
}

// find looks for the address below its NIC.
func (home *Home) find(source *store.CloudSource) {
	for _, nic := range source.NICs {
		if nic.MAC != home.NIC.MAC {
			continue
		}
		for _, s := range nic.Subnets {
			if s.Prefix.Contains(home.Address) || slices.Contains(s.Addresses, home.Address) ||
				slices.ContainsFunc(s.Ranges, func(p netip.Prefix) bool { return p.Contains(home.Address) }) {
				home.NIC, home.Subnet, home.NICs = nic, s, source.NICs
				return
			}
		}
	}
}
