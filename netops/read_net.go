package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// addrState is an address as the kernel tells it.
type addrState struct {
	link   int
	prefix netip.Prefix
	flags  uint32
	scope  uint8 // RT_SCOPE_*
}

// addresses reads the addresses of one link, or of all for index 0.
func (c *rtConn) addresses(ctx context.Context, index int) ([]addrState, error) {
	m := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	m.Index = uint32(index)
	var all []addrState
	err := c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETADDR, Data: []nl.NetlinkRequestData{m}},
		func() { all = nil },
		func(_ uint16, data []byte) error {
			a, ok, err := parseAddr(data)
			if ok && (index == 0 || a.link == index) {
				all = append(all, a)
			}
			return err
		})
	return all, nlconn.Explain(err, "list addresses")
}

// parseAddr reads the body of RTM_NEWADDR. IFA_LOCAL is the address where
// there is one: on a point-to-point link IFA_ADDRESS is the other end's.
func parseAddr(b []byte) (a addrState, ok bool, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, false, fmt.Errorf("address message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	bits := int(b[1])
	a.flags, a.scope, a.link = uint32(b[2]), b[3], int(binary.NativeEndian.Uint32(b[4:]))
	var local, address netip.Addr
	err = nlconn.EachAttr(b[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.flags = uint32(nlconn.Int(v))
		}
		return nil
	})
	if !local.IsValid() {
		local = address
	}
	a.prefix = netip.PrefixFrom(local, bits)
	return a, err == nil && a.prefix.IsValid(), err
}

// routeState is a unicast route as the kernel tells it; a multipath route is
// one for each of its hops.
type routeState struct {
	link, priority, table, mtu, advmss int
	scope, protocol                    uint8
	dst                                netip.Prefix
	via, src                           netip.Addr
	onLink                             bool
}

// routes reads the routes of both families, filtered by the kernel: over one
// link (0 for all), in one table (0 for all).
func (c *rtConn) routes(ctx context.Context, link, table int) ([]routeState, error) {
	var all []routeState
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := c.routesOf(ctx, family, link, table)
		if err != nil {
			return nil, nlconn.Explain(err, "list routes")
		}
		all = append(all, some...)
	}
	return all, nil
}

func (c *rtConn) routesOf(ctx context.Context, family uint8, link, table int) ([]routeState, error) {
	rtm := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Type: unix.RTN_UNICAST}}
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Data: []nl.NetlinkRequestData{rtm}}
	if table != 0 {
		m.Data = append(m.Data, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(table))))
	}
	if link != 0 {
		m.Data = append(m.Data, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link))))
	}
	var all []routeState
	err := c.Dump(ctx, m, func() { all = nil }, func(_ uint16, data []byte) error {
		some, err := parseRoute(data)
		for _, r := range some {
			if (link == 0 || r.link == link) && (table == 0 || r.table == table) {
				all = append(all, r)
			}
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no such table, or no such family
	}
	return all, err
}

// parseRoute reads the body of RTM_NEWROUTE; nothing for routes that are not unicast.
func parseRoute(b []byte) ([]routeState, error) { return parseRouteOf(b, unix.RTN_UNICAST) }

// parseRouteOf reads a route of one type (RTN_*), nothing for others.
func parseRouteOf(b []byte, kind uint8) ([]routeState, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("route message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	if b[7] != kind {
		return nil, nil
	}
	r := routeState{table: int(b[4]), protocol: b[5], scope: b[6]}
	r.onLink = binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK != 0
	dst := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	var hops []routeState
	err := nlconn.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_PREFSRC:
			r.src, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			r.priority = nlconn.Int(v)
		case unix.RTA_TABLE:
			r.table = nlconn.Int(v)
		case unix.RTA_METRICS:
			return r.parseMetrics(v)
		case unix.RTA_MULTIPATH:
			hops = parseHops(v)
		default:
			return r.parseHop(kind, v)
		}
		return nil
	})
	r.dst = netip.PrefixFrom(dst, int(b[1]))
	if err != nil || !r.dst.IsValid() {
		return nil, err
	}
	if hops == nil {
		return []routeState{r}, nil
	}
	for i := range hops {
		link, via, onLink := hops[i].link, hops[i].via, hops[i].onLink
		hops[i] = r
		hops[i].link, hops[i].via, hops[i].onLink = link, via, onLink
	}
	return hops, nil
}

// parseHop reads the attributes that a hop of a multipath route has too.
func (r *routeState) parseHop(kind uint16, v []byte) error {
	switch kind {
	case unix.RTA_OIF:
		r.link = nlconn.Int(v)
	case unix.RTA_GATEWAY:
		r.via, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA:
		if len(v) > 2 {
			r.via, _ = netip.AddrFromSlice(v[2:])
		}
	}
	return nil
}

func (r *routeState) parseMetrics(b []byte) error {
	return nlconn.EachAttr(b, func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTAX_MTU:
			r.mtu = nlconn.Int(v)
		case unix.RTAX_ADVMSS:
			r.advmss = nlconn.Int(v)
		}
		return nil
	})
}

// parseHops reads RTA_MULTIPATH; what follows a damaged length is dropped.
func parseHops(b []byte) []routeState {
	hops := []routeState{}
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		r := routeState{link: int(int32(binary.NativeEndian.Uint32(b[4:]))), onLink: b[2]&unix.RTNH_F_ONLINK != 0}
		if nlconn.EachAttr(b[unix.SizeofRtNexthop:size], r.parseHop) == nil {
			hops = append(hops, r)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return hops
}
