package clusterrange

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/store"
)

// Devices returns the name of the network in a file, such as one of /etc/cni/net.d, and what gives its addresses to devices.
func Devices(file []byte) (network string, _ ranges.Devices, err error) {
	network, conf, err := leasing.PluginConf(file, names()...)
	if err != nil {
		return network, nil, err
	}
	a, err := newHandler(conf)
	if err != nil {
		return network, nil, err
	}
	if a.moves() {
		return network, nil, &roles.ConfError{Path: "ipam.sticky", Reason: "and an IPAMClaim keep addresses for pods, and no pod is known of a device: remove them, or give devices a network without them"}
	}
	// The demands have the network of the leases. The pool stays that of the network.
	a.network = ranges.DeviceKey(network, "", "").Network
	return network, devices{a}, nil
}

// devices implements ranges.Devices for one network.
type devices struct{ *handler }

// Add is ADD without a namespace. For a requested address that is not in a block of this node it asks the agent for it.
func (d devices) Add(ctx context.Context, h *roles.Host, owner store.Key, requested []netip.Addr) error {
	var wanted []store.RangeDemand
	for i, a := range requested {
		for set, s := range d.Plan.Sets {
			if r := s.RangeOf(a); r != nil && (r.Allows(a) || r.Gateway == a) { // an operator gives out excluded ones
				d.Plan.Requested = append(d.Plan.Requested, leasing.NewRequest(fmt.Sprintf("config.interface.addresses[%d]", i), a))
				wanted = append(wanted, store.RangeDemand{
					Network: d.network, Set: len(d.Plan.Sets) + set, Pool: d.pool, Bits: r.Subnet.Bits(), Free: [][2]netip.Addr{{a, a}}, Time: h.Now().UTC(),
				})
				break
			}
		}
	}
	add := func() error {
		_, err := d.handler.Add(ctx, h, &roles.Request{Network: owner.Network, ContainerID: owner.ContainerID, IfName: owner.IfName})
		return err
	}
	err := add()
	if !errors.Is(err, store.ErrTaken) || len(wanted) == 0 {
		return err
	}
	askErr := ranges.Ask(ctx, h, wanted)
	forgetErr := h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { // the agent needs no further block for them
		var faults []error
		for i := range wanted {
			faults = append(faults, tx.DeleteRangeDemand(&wanted[i]))
		}
		return errors.Join(faults...)
	})
	if askErr != nil || forgetErr != nil {
		return errors.Join(err, askErr, forgetErr)
	}
	return add()
}

// Result has the addresses in the order of the ranges.
func (d devices) Result(leases []store.Lease) (*roles.Result, error) {
	res := roles.NewResult(d.routes, d.dns)
	for _, s := range d.Plan.Sets {
		for i := range leases {
			if r := s.RangeOf(leases[i].Address); r != nil {
				res.IPs = append(res.IPs, roles.ResultIP(netip.PrefixFrom(leases[i].Address, r.Subnet.Bits()), r.Gateway))
			}
		}
	}
	if len(res.IPs) < len(leases) {
		return nil, fmt.Errorf("the ranges of the network were changed and lack an address that the device has, of %v: restore them, or delete the pod", addresses(leases))
	}
	return res, nil
}

func addresses(leases []store.Lease) (all []netip.Addr) {
	for i := range leases {
		all = append(all, leases[i].Address)
	}
	return all
}
