package netops

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops/internal/reach"
)

// Announce announces those of the addresses that a link has to the other hosts on the link, so that they send packets
// for them to its MAC. It returns the announced addresses. A link without a MAC announces none.
func (n *Net) Announce(ctx context.Context, ns *Namespace, link string, addrs []netip.Addr) (announced []netip.Addr, err error) {
	l, err := n.Link(ctx, ns, link)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(l.MAC)
	if err != nil || len(mac) != 6 || !l.Up {
		return nil, nil //nolint:nilerr // without an Ethernet address there is nothing to announce
	}
	have, err := n.Addresses(ctx, ns, link)
	if err != nil {
		return nil, err
	}
	err = n.observed(ns).visit(func() error {
		for _, a := range addrs {
			if !slices.ContainsFunc(have, func(p netip.Prefix) bool { return p.Addr() == a }) {
				continue
			}
			if err := reach.Announce(l.Index, mac, a); err != nil {
				return err
			}
			announced = append(announced, a)
		}
		return nil
	})
	return announced, err
}
