package attachment

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// CloudLocation is the NIC and the subnet of this node that a cloud address belongs to.
type CloudLocation struct {
	Address netip.Addr
	// NIC has only its MAC, and Subnet is zero, if the cloud no longer lists the address.
	NIC    store.CloudNIC
	Subnet store.CloudSubnet
	// NICs are all NICs of the same source.
	NICs []store.CloudNIC
}

// CloudLocations returns the NIC and subnet of each cloud address of an attachment, IPv4
// first. It reads only the store.
func CloudLocations(ctx context.Context, h *roles.Host, key store.Key) ([]CloudLocation, error) {
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
	var locations []CloudLocation
	for _, l := range leases {
		loc := CloudLocation{Address: l.Address, NIC: store.CloudNIC{MAC: l.NIC}}
		if sources[l.Source] == nil {
			sources[l.Source] = keptSource(ctx, h, l.Source)
		}
		loc.find(sources[l.Source])
		locations = append(locations, loc)
	}
	return locations, nil
}

// CloudNICs returns the MAC of the NIC of each cloud address of an attachment, IPv4
// first. Unlike CloudLocations it does not read the cloud's replies.
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

// keptSource returns a source's last state before the reboot, for use until the cloud's
// next reply. If it cannot be read, the source is empty.
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
		h.Log.Debug("read the cloud's last reply before the reboot", "source", name, "error", err)
	}
	return kept
}

// find finds the NIC and the subnet of the address: the subnet that lists the address,
// else the subnet with a prefix that contains it.
func (loc *CloudLocation) find(source *store.CloudSource) {
	named := func(s store.CloudSubnet) bool { return s.Gives(loc.Address) }
	belongs := func(s store.CloudSubnet) bool { return s.Prefix.Contains(loc.Address) }
	for _, is := range []func(store.CloudSubnet) bool{named, belongs} {
		for _, nic := range source.NICs {
			if nic.MAC != loc.NIC.MAC {
				continue
			}
			if i := slices.IndexFunc(nic.Subnets, is); i >= 0 {
				loc.NIC, loc.Subnet, loc.NICs = nic, nic.Subnets[i], source.NICs
				return
			}
		}
	}
}
