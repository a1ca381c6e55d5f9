package netops

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// takeoverPatience limits the waits for asynchronous work of the kernel. The
// work takes about a millisecond, and longer on a busy node.
const takeoverPatience = 30 * time.Second

// awaitCarrier waits until the bridge can carry traffic. Before that the kernel
// drops packets that the bridge sends. If the uplink has no carrier, the bridge
// has none either, and awaitCarrier returns at once.
func (r *takeoverRun) awaitCarrier(ctx context.Context) error {
	if r.up.Oper != rtnl.OperUp {
		return nil
	}
	err := r.await(ctx, unix.RTNLGRP_LINK, func(ctx context.Context) (bool, error) {
		br, err := r.c.LinkByIndex(ctx, r.br.Index)
		return err == nil && br.Oper == rtnl.OperUp && br.Flags&unix.IFF_LOWER_UP != 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the carrier of bridge %q: %w", r.Bridge, err)
	}
	return nil
}

// awaitAddresses waits until the node accepts packets for the IPv6 addresses
// that were added to a link. The kernel adds the local routes asynchronously,
// together with duplicate address detection (addrconf_dad_work).
func (r *takeoverRun) awaitAddresses(ctx context.Context, to moveTarget, p *placed) error {
	wanted := map[netip.Addr]bool{}
	for _, a := range p.addrs {
		if a.Prefix.Addr().Is6() {
			wanted[a.Prefix.Addr()] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	err := r.await(ctx, unix.RTNLGRP_IPV6_ROUTE, func(ctx context.Context) (bool, error) {
		local := rtnl.RoutesRequest{Link: to.index, Table: unix.RT_TABLE_LOCAL, Kind: unix.RTN_LOCAL}
		routes, err := r.c.RoutesOf(ctx, unix.AF_INET6, local)
		have := map[netip.Addr]bool{}
		for _, l := range routes {
			if wanted[l.Dst.Addr()] && l.Dst.IsSingleIP() {
				have[l.Dst.Addr()] = true
			}
		}
		return len(have) == len(wanted), err
	})
	if err != nil {
		return fmt.Errorf("wait for the IPv6 addresses of %q: %w", to.link, err)
	}
	return nil
}

// await waits until done returns true. It calls done after each notification of
// the multicast group.
func (r *takeoverRun) await(ctx context.Context, group int, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverPatience)
	defer cancel()
	return r.net.host.await(ctx, group, done)
}
