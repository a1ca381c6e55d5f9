package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// RTANexthopID is RTA_NH_ID of linux/rtnetlink.h. x/sys/unix does not define it.
const RTANexthopID = 30

// Route is a route of any type. A route with a nexthop object has the object's number.
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

// RoutesRequest selects the routes that Routes reads. Link and Table may be 0 for all.
type RoutesRequest struct {
	Link, Table int
	Kind        uint8 // RTN_*
}

// Routes reads the unicast routes of both families over one link (0 for all) in one table
// (0 for all). A multipath route becomes one Route for each next hop.
func (c *Conn) Routes(ctx context.Context, link, table int) ([]Route, error) {
	var all []Route
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := c.RoutesOf(ctx, family, RoutesRequest{link, table, unix.RTN_UNICAST})
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// RoutesOf reads routes of one family. The kernel filters them.
func (c *Conn) RoutesOf(ctx context.Context, family uint8, r RoutesRequest) ([]Route, error) {
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Body: nlconn.Body{family, 0, 0, 0, 0, 0, 0, r.Kind, 0, 0, 0, 0}}
	m.Attrs([]nlconn.Attr{{Kind: unix.RTA_TABLE, At: &r.Table}, {Kind: unix.RTA_OIF, At: &r.Link}})
	var all []Route
	err := c.Dump(ctx, m, func() { all = nil }, func(_ uint16, data []byte) error {
		some, err := ParseRouteOf(data, r.Kind)
		for _, have := range some {
			if (r.Link == 0 || have.Link == r.Link) && (r.Table == 0 || have.Table == r.Table) {
				all = append(all, have)
			}
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no such table or address family
	}
	return all, nlconn.Explain(err, "list routes")
}

// RouteMessage returns the request for the kernel's route of a packet to an address. from, and the indexes of
// its devices, may be zero.
func RouteMessage(to, from netip.Addr, in, out int) nlconn.Message {
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Body: nlconn.Body{Family(to), uint8(to.BitLen()), uint8(from.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0}}
	m.Attrs([]nlconn.Attr{{Kind: unix.RTA_DST, At: &to}, {Kind: unix.RTA_SRC, At: &from}, {Kind: unix.RTA_IIF, At: &in}, {Kind: unix.RTA_OIF, At: &out}})
	return m
}

// Append appends the body of a request for the route. A deletion has only what identifies the route.
func (r *Route) Append(b nlconn.Body) nlconn.Body {
	table, flags, dst := r.Table, uint32(0), r.Dst.Masked().Addr()
	if r.OnLink {
		flags = unix.RTNH_F_ONLINK
	}
	if r.Dst.Bits() == 0 {
		dst = netip.Addr{}
	}
	b = append(b, Family(r.Dst.Addr()), uint8(r.Dst.Bits()), 0, 0, unix.RT_TABLE_UNSPEC, r.Protocol, r.Scope, r.Kind)
	b = binary.NativeEndian.AppendUint32(b, flags)
	b.Attrs([]nlconn.Attr{
		{Kind: unix.RTA_TABLE, At: &table},
		{Kind: unix.RTA_OIF, At: &r.Link},
		{Kind: unix.RTA_DST, At: &dst},
		{Kind: unix.RTA_PRIORITY, At: &r.Priority},
		{Kind: RTANexthopID, At: &r.NexthopID},
		{Kind: unix.RTA_PREFSRC, At: &r.Src},
		{Kind: unix.RTA_METRICS, At: r.metrics()},
	})
	if r.Via.Is4() == r.Dst.Addr().Is4() {
		b.Attrs([]nlconn.Attr{{Kind: unix.RTA_GATEWAY, At: &r.Via}})
	} else if r.Via.IsValid() { // the gateway of an IPv4 route with an IPv6 gateway
		b.Bytes(unix.RTA_VIA, append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), r.Via.AsSlice()...))
	}
	return b
}

func (r *Route) metrics() []nlconn.Attr {
	return []nlconn.Attr{{Kind: unix.RTAX_MTU, At: &r.MTU}, {Kind: unix.RTAX_ADVMSS, At: &r.AdvMSS}}
}

// ParseRouteOf reads a route of one type (RTN_*) from the body of RTM_NEWROUTE. It returns nothing for
// another type.
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
	var via, paths, cache []byte
	err = nlconn.ReadAttrs(b[unix.SizeofRtMsg:], []nlconn.Attr{
		{Kind: unix.RTA_DST, At: &dst},
		{Kind: unix.RTA_PREFSRC, At: &r.Src},
		{Kind: unix.RTA_PRIORITY, At: &r.Priority},
		{Kind: unix.RTA_TABLE, At: &r.Table},
		{Kind: unix.RTA_METRICS, At: r.metrics()},
		{Kind: RTANexthopID, At: &r.NexthopID},
		{Kind: unix.RTA_OIF, At: &r.Link},
		{Kind: unix.RTA_GATEWAY, At: &r.Via},
		{Kind: unix.RTA_VIA, At: &via},
		{Kind: unix.RTA_MULTIPATH, At: &paths},
		{Kind: unix.RTA_CACHEINFO, At: &cache},
	})
	r.setVia(via)
	r.Expires = len(cache) >= 12 && binary.NativeEndian.Uint32(cache[8:]) != 0 // struct rta_cacheinfo
	r.Dst = netip.PrefixFrom(dst, int(b[1]))
	if paths != nil {
		hops = parseHops(paths)
	}
	return r, hops, err
}

// setVia sets the gateway from RTA_VIA, which has the gateway's family first.
func (r *Route) setVia(via []byte) {
	if len(via) > 2 {
		r.Via, _ = netip.AddrFromSlice(via[2:])
	}
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
		var via []byte
		attrs := []nlconn.Attr{{Kind: unix.RTA_OIF, At: &r.Link}, {Kind: unix.RTA_GATEWAY, At: &r.Via}, {Kind: unix.RTA_VIA, At: &via}}
		if nlconn.ReadAttrs(b[unix.SizeofRtNexthop:size], attrs) == nil {
			r.setVia(via)
			hops = append(hops, r)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return hops
}
