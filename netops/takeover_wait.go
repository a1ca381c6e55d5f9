package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// takeoverPatience bounds the waits for what the kernel does by itself within a
// millisecond, or when a busy node lets it.
const takeoverPatience = 30 * time.Second

// awaitCarrier waits until the bridge can carry traffic: before that the kernel
// drops what is sent by it. It has no carrier of its own where the uplink has none.
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

// awaitAddresses waits until packets for IPv6 addresses are taken in that a link was
// given: the kernel makes the routes for that a little later, by the way that has
// duplicate address detection on it (addrconf_dad_work).
func (r *takeoverRun) awaitAddresses(ctx context.Context, to on, p *placed) error {
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
		m := nlconn.Message{Kind: unix.RTM_GETROUTE, Data: []nl.NetlinkRequestData{
			&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6}},
			nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(unix.RT_TABLE_LOCAL)),
		}}
		have := map[netip.Addr]bool{}
		err := r.c.Dump(ctx, m, func() { clear(have) }, func(_ uint16, data []byte) error {
			hops, err := rtnl.ParseRouteOf(data, unix.RTN_LOCAL)
			for _, h := range hops {
				if h.Link == to.index && wanted[h.Dst.Addr()] && h.Dst.IsSingleIP() {
					have[h.Dst.Addr()] = true
				}
			}
			return err
		})
		return len(have) == len(wanted), err
	})
	if err != nil {
		return fmt.Errorf("wait for the IPv6 addresses of %q: %w", to.link, err)
	}
	return nil
}

// await waits until something is so, which is looked at each time that the kernel
// tells of a change of the kind.
func (r *takeoverRun) await(ctx context.Context, group int, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverPatience)
	defer cancel()
	var told *rtnl.Conn
	err := r.net.host.visit(func() (err error) {
		if told, err = rtnl.Open(); err != nil {
			return err
		}
		return told.Join(group)
	})
	if told != nil {
		defer func() { _ = told.Close() }()
	}
	for err == nil {
		var is bool
		if is, err = done(ctx); is || err != nil {
			return err
		}
		err = told.Receive(ctx, func(unix.NlMsghdr, []byte) {})
		if errors.Is(err, unix.ENOBUFS) { // told of too much: look again
			err = nil
		}
	}
	return err
}
