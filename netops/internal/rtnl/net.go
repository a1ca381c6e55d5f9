package rtnl

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

// Addr is an address as the kernel reports it.
type Addr struct {
	Link   int
	Prefix netip.Prefix
	Flags  uint32
	Scope  uint8 // RT_SCOPE_*
}

// Addresses reads the addresses of one link, or of all links for index 0.
func (c *Conn) Addresses(ctx context.Context, index int) ([]Addr, error) {
	ifa := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	ifa.Index = uint32(index)
	var all []Addr
	err := c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETADDR, Header: ifa},
		func() { all = nil },
		func(_ uint16, data []byte) error {
			a, ok, err := ParseAddr(data)
			if ok && (index == 0 || a.Link == index) {
				all = append(all, a)
			}
			return err
		})
	return all, nlconn.Explain(err, "list addresses")
}

// ParseAddr reads the body of RTM_NEWADDR. It prefers IFA_LOCAL, because on a
// point-to-point link IFA_ADDRESS is the peer's address.
func ParseAddr(b []byte) (a Addr, ok bool, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, false, fmt.Errorf("address message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	bits := int(b[1])
	a.Flags, a.Scope, a.Link = uint32(b[2]), b[3], int(binary.NativeEndian.Uint32(b[4:]))
	var local, address netip.Addr
	err = nlconn.EachAttr(b[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.Flags = uint32(nlconn.Int(v))
		}
		return nil
	})
	if !local.IsValid() {
		local = address
	}
	a.Prefix = netip.PrefixFrom(local, bits)
	return a, err == nil && a.Prefix.IsValid(), err
}

// Route is a route as the kernel reports it. A multipath route becomes one Route for
// each next hop. A route with a nexthop object has the object's number.
type Route struct {
	Link, Priority, Table, MTU, AdvMSS int
	NexthopID                          uint32
	Scope, Protocol, Kind              uint8 // RT_SCOPE_*, RTPROT_*, RTN_*
	Dst                                netip.Prefix
	Via, Src                           netip.Addr
	OnLink                             bool
	// Expires is set for a route with properties that the kernel has learnt, such as the MTU of a path.
	Expires bool
}

// Routes reads the routes of both families over one link (0 for all) in one table
// (0 for all). The kernel filters them.
func (c *Conn) Routes(ctx context.Context, link, table int) ([]Route, error) {
	var all []Route
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := c.routesOf(ctx, family, link, table)
		if err != nil {
			return nil, nlconn.Explain(err, "list routes")
		}
		all = append(all, some...)
	}
	return all, nil
}

func (c *Conn) routesOf(ctx context.Context, family uint8, link, table int) ([]Route, error) {
	rtm := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Type: unix.RTN_UNICAST}}
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Header: rtm}
	if table != 0 {
		m.Uint32(unix.RTA_TABLE, uint32(table))
	}
	if link != 0 {
		m.Uint32(unix.RTA_OIF, uint32(link))
	}
	var all []Route
	err := c.Dump(ctx, m, func() { all = nil }, func(_ uint16, data []byte) error {
		some, err := ParseRoute(data)
		for _, r := range some {
			if (link == 0 || r.Link == link) && (table == 0 || r.Table == table) {
				all = append(all, r)
			}
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no such table or address family
	}
	return all, err
}

// ParseRoute reads the body of RTM_NEWROUTE. It returns nothing for a route that
// is not unicast.
func ParseRoute(b []byte) ([]Route, error) { return ParseRouteOf(b, unix.RTN_UNICAST) }

// ParseRouteOf reads a route of one type (RTN_*). It returns nothing for another
// type.
func ParseRouteOf(b []byte, kind uint8) ([]Route, error) {
	r, hops, err := ParseHops(b)
	if err != nil || r.Kind != kind || !r.Dst.IsValid() {
		return nil, err
	}
	if hops == nil {
		return []Route{r}, nil
	}
	for i := range hops {
		link, via, onLink := hops[i].Link, hops[i].Via, hops[i].OnLink
		hops[i] = r
		hops[i].Link, hops[i].Via, hops[i].OnLink = link, via, onLink
	}
	return hops, nil
}

// ParseHops reads a route of any type, and apart from it the next hops of a multipath
// route.
func ParseHops(b []byte) (r Route, hops []Route, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, nil, fmt.Errorf("route message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	r = Route{Table: int(b[4]), Protocol: b[5], Scope: b[6], Kind: b[7]}
	r.OnLink = binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK != 0
	dst := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	err = nlconn.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			r.Priority = nlconn.Int(v)
		case unix.RTA_TABLE:
			r.Table = nlconn.Int(v)
		case unix.RTA_METRICS:
			return r.parseMetrics(v)
		case unix.RTA_CACHEINFO: // struct rta_cacheinfo
			r.Expires = len(v) >= 12 && binary.NativeEndian.Uint32(v[8:]) != 0
		case RTANexthopID:
			r.NexthopID = uint32(nlconn.Int(v))
		case unix.RTA_MULTIPATH:
			hops = parseHops(v)
		default:
			return r.parseHop(kind, v)
		}
		return nil
	})
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	return r, hops, err
}

// parseHop reads the attributes that the next hops of a multipath route have too.
func (r *Route) parseHop(kind uint16, v []byte) error {
	switch kind {
	case unix.RTA_OIF:
		r.Link = nlconn.Int(v)
	case unix.RTA_GATEWAY:
		r.Via, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA:
		if len(v) > 2 {
			r.Via, _ = netip.AddrFromSlice(v[2:])
		}
	}
	return nil
}

func (r *Route) parseMetrics(b []byte) error {
	return nlconn.EachAttr(b, func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTAX_MTU:
			r.MTU = nlconn.Int(v)
		case unix.RTAX_ADVMSS:
			r.AdvMSS = nlconn.Int(v)
		}
		return nil
	})
}

// parseHops reads RTA_MULTIPATH. It drops the rest of b after an invalid length.
func parseHops(b []byte) []Route {
	hops := []Route{}
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		r := Route{Link: int(int32(binary.NativeEndian.Uint32(b[4:]))), OnLink: b[2]&unix.RTNH_F_ONLINK != 0}
		if nlconn.EachAttr(b[unix.SizeofRtNexthop:size], r.parseHop) == nil {
			hops = append(hops, r)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return hops
}
