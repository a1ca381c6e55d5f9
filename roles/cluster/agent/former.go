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

// removeFormerGateways removes addresses in other nodes' pod networks from the bridges that cnibox
// made. A bridge has such an address if the other node's network belonged to this node before. Then
// this node does not reach the other node's pods. An address of another program is returned as an
// error.
func (a *agent) removeFormerGateways(ctx context.Context) error {
	var errs []error
	for i := range a.links {
		l := &a.links[i]
		if l.Loopback || slices.ContainsFunc(a.families[:], func(f *family) bool { return f.spec.Device != nil && f.spec.Device.Name == l.Name }) {
			continue
		}
		for _, addr := range l.Addresses {
			p := a.peerOf(addr.Prefix.Addr())
			if p == nil {
				continue
			}
			if l.Alias != attachment.SharedAlias {
				errs = append(errs, fmt.Errorf("interface %q has address %s of the pod network of node %q: delete the address", l.Name, addr.Prefix, p.Name))
				continue
			}
			a.log.Warn("a bridge has an address of another node's pod network: it is removed", "interface", l.Name, "address", addr.Prefix, "node", p.Name)
			former := &netops.Addr{In: netops.Host, Shared: true, Link: l.Name, Address: addr.Prefix}
			errs = append(errs, a.host.Net.Undo(ctx, attachment.Inverses([]netops.Object{former}), nil))
		}
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
