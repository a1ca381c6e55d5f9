package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// formerAddress is an address of a bridge that cnibox made, in the pod network of another node.
type formerAddress struct {
	link, node string
	address    netip.Prefix
}

// formerAddresses returns addresses in other nodes' pod networks of the bridges that cnibox made. A bridge has one if the other
// node's network belonged to this node before. Then this node does not reach the other node's pods. An address of another
// program is returned as an error. The devices of the overlay are left out.
func (k *knowledge) formerAddresses(devices ...*overlay.VTEP) (all []formerAddress, err error) {
	var errs []error
	for i := range k.links {
		l := &k.links[i]
		if l.Loopback || slices.ContainsFunc(devices, func(v *overlay.VTEP) bool { return v != nil && v.Name == l.Name }) {
			continue
		}
		for _, addr := range l.Addresses {
			switch p := k.peerOf(addr.Prefix.Addr()); {
			case p == nil:
			case l.Alias == attachment.SharedAlias:
				all = append(all, formerAddress{l.Name, p.Name, addr.Prefix})
			default:
				errs = append(errs, fmt.Errorf("interface %q has address %s of the pod network of node %q: delete the address", l.Name, addr.Prefix, p.Name))
			}
		}
	}
	return all, errors.Join(errs...)
}

// removeFormer removes the former addresses.
func (a *agent) removeFormer(ctx context.Context, all []formerAddress) error {
	var errs []error
	for _, f := range all {
		a.log.Warn("a bridge has an address of another node's pod network: it is removed", "interface", f.link, "address", f.address, "node", f.node)
		former := &netops.Addr{In: netops.Host, Shared: true, Link: f.link, Address: f.address}
		errs = append(errs, a.host.Net.Undo(ctx, attachment.Inverses([]netops.Object{former}), nil))
	}
	return errors.Join(errs...)
}

// maxDetours limits the routes in an error message.
const maxDetours = 3

// detourError names other programs' routes to peers' networks. It returns nil if there is none.
func detourError(all ...[]overlay.Detour) error {
	var errs []error
	detours := slices.Concat(all...)
	for i, d := range detours {
		if i == maxDetours {
			errs = append(errs, fmt.Errorf("and %d more such routes", len(detours)-i))
			break
		}
		errs = append(errs, fmt.Errorf("another program's route %s leads to the pod network of node %q: delete the route", d.Route, d.Peer))
	}
	return errors.Join(errs...)
}

// peerOf returns the peer whose pod network has an address, or nil.
func (k *knowledge) peerOf(addr netip.Addr) *overlay.Peer {
	all := k.peers.family(addr.Is6())
	network, _ := k.config.Family(addr.Is6())
	if own, ok := k.own.PodCIDR(addr.Is6()); !network.IsValid() || !network.Contains(addr) || ok && own.Contains(addr) {
		return nil // most addresses; the peers need not be searched
	}
	if i := slices.IndexFunc(all, func(p overlay.Peer) bool { return p.Subnet.Contains(addr) }); i >= 0 {
		return &all[i]
	}
	return nil
}
