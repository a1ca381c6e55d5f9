package ranges

import (
	"context"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// devicePrefix begins the network of the owner of a device's lease. No CNI network has such a name, so neither DEL nor GC of a
// runtime releases the lease, and it has no namespace whose end would show that the owner is gone.
const devicePrefix = "dranet/"

// DeviceKey returns the owner of the addresses that a device has for a ResourceClaim from the ranges of a network. Without a
// network it is what calls for the device lock.
func DeviceKey(network, claimUID, device string) store.Key {
	return store.Key{Network: devicePrefix + network, ContainerID: claimUID, IfName: device}
}

// DeviceNetwork returns the network of a device's owner, and false for another owner.
func DeviceNetwork(owner store.Key) (network string, ok bool) {
	return strings.CutPrefix(owner.Network, devicePrefix)
}

// Devices gives addresses of a network's ranges to devices, which have no CNI attachment.
type Devices interface {
	// Add gives a device one address of each range. From requested, the addresses that the device will have in any case, it takes those
	// of the ranges. If the owner has addresses already, the error is roles.ErrAttached.
	Add(ctx context.Context, h *roles.Host, owner store.Key, requested []netip.Addr) error
	// Result returns the result of the Add that made these leases.
	Result(leases []store.Lease) (*roles.Result, error)
}

// DeviceLeases returns the leases of all devices.
func DeviceLeases(tx *store.Tx) (all []store.Lease, err error) {
	err = eachLease(tx, func(_ store.PoolID, l *store.Lease) {
		if _, ok := DeviceNetwork(l.Owner); ok {
			all = append(all, *l)
		}
	})
	return all, err
}
