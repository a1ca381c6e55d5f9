package netops

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// rawAttr is a netlink attribute as it was read.
type rawAttr struct {
	kind  uint16
	value []byte
}

// rawMessage is the body of a message. It can be sent again for another link,
// with attributes that this package does not interpret.
type rawMessage struct {
	header []byte
	attrs  []rawAttr
}

func readRaw(b []byte, header int) (m rawMessage, err error) {
	if len(b) < header {
		return m, fmt.Errorf("message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	m.header = slices.Clone(b[:header])
	err = nlconn.EachAttr(b[header:], func(kind uint16, v []byte) error {
		m.attrs = append(m.attrs, rawAttr{kind, slices.Clone(v)})
		return nil
	})
	return m, err
}

// value returns the value of an attribute, or nil if it is absent.
func (m *rawMessage) value(kind uint16) []byte {
	for _, a := range m.attrs {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

// copyTo appends the attributes of the given kinds to a request.
func (m *rawMessage) copyTo(b *nlconn.Body, kinds ...uint16) {
	for _, a := range m.attrs {
		if slices.Contains(kinds, a.kind) {
			b.Bytes(a.kind, a.value)
		}
	}
}

// placedAddr and placedRoute are objects of a link.
type placedAddr struct {
	rawMessage
	rtnl.Addr
}

type placedRoute struct {
	rawMessage
	rtnl.Route
	kind, tos, family byte
	// first reports whether the route is the first of several routes to its
	// destination.
	first bool
	// refused is the reason why the route cannot move to another link.
	refused string
}

// placed holds the addresses and routes of a link.
type placed struct {
	addrs []placedAddr
	// local holds the IPv6 link-local addresses.
	local  []placedAddr
	routes []placedRoute
	// connected holds the unicast routes that the kernel added for
	// addresses.
	connected []placedRoute
}

// placedOn reads the addresses and routes of a link.
func placedOn(ctx context.Context, c *rtnl.Conn, index int) (*placed, error) {
	p := &placed{}
	if err := placedAddrs(ctx, c, index, p); err != nil {
		return nil, nlconn.Explain(err, "list addresses")
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := placedRoutes(ctx, c, index, family, p); err != nil {
			return nil, nlconn.Explain(err, "list routes")
		}
	}
	return p, nil
}

func placedAddrs(ctx context.Context, c *rtnl.Conn, index int, p *placed) error {
	m := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	m.Index = uint32(index)
	return c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETADDR, Header: m},
		func() { p.addrs, p.local = nil, nil },
		func(_ uint16, data []byte) error {
			state, ok, err := rtnl.ParseAddr(data)
			if err != nil || !ok || state.Link != index {
				return err
			}
			raw, err := readRaw(data, unix.SizeofIfAddrmsg)
			list := &p.addrs
			if isLinkLocal6(state.Prefix.Addr()) {
				list = &p.local
			}
			if state.Prefix.Addr().Is6() { // the kernel lists the newest address first
				*list = slices.Insert(*list, 0, placedAddr{raw, state})
			} else {
				*list = append(*list, placedAddr{raw, state})
			}
			return err
		})
}

func isLinkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// placedRoutes reads all routes of a family, to learn their order, and keeps
// those of the link.
func placedRoutes(ctx context.Context, c *rtnl.Conn, index int, family byte, p *placed) error {
	type destination struct {
		dst                  netip.Prefix
		table, priority, tos int
	}
	before, made := len(p.routes), len(p.connected)
	seen := map[destination]bool{}
	m := nlconn.Message{Kind: unix.RTM_GETROUTE, Header: &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}}}
	err := c.Dump(ctx, m, func() {
		p.routes, p.connected = p.routes[:before], p.connected[:made]
		clear(seen)
	}, func(_ uint16, data []byte) error {
		r, ok, err := parsePlacedRoute(data, index)
		if err != nil || r.kind == 0 {
			return err
		}
		d := destination{r.Dst, r.Table, r.Priority, int(r.tos)}
		r.first = !seen[d]
		seen[d] = true
		switch {
		case !ok:
		case !p.isKernels(r):
			p.routes = append(p.routes, r)
		case r.kind == unix.RTN_UNICAST && !isLinkLocal6(r.Dst.Addr()) && !r.Dst.Addr().IsMulticast():
			p.connected = append(p.connected, r)
		}
		return nil
	})
	if len(p.routes) > before {
		// The kernel looks up a gateway when its route is added.
		// Therefore add the routes without a gateway first.
		sorting.Stable(p.routes[before:], func(a, b placedRoute) int {
			return cmp.Compare(boolInt(a.Via.IsValid()), boolInt(b.Via.IsValid()))
		})
	}
	return err
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// isKernels reports whether the kernel added the route for one of the addresses
// or for the link itself.
func (p *placed) isKernels(r placedRoute) bool {
	if r.Protocol != unix.RTPROT_KERNEL {
		return false
	}
	return r.kind != unix.RTN_UNICAST || isLinkLocal6(r.Dst.Addr()) || r.Dst.Addr().IsMulticast() ||
		slices.ContainsFunc(p.addrs, func(a placedAddr) bool {
			return a.Flags&unix.IFA_F_NOPREFIXROUTE == 0 && a.Prefix.Masked() == r.Dst
		})
}

// parsePlacedRoute parses a route. ok reports whether it uses the link. Its kind
// is 0 for a cached clone and for a route that is neither unicast nor local.
func parsePlacedRoute(b []byte, index int) (r placedRoute, ok bool, err error) {
	raw, err := readRaw(b, unix.SizeofRtMsg)
	if err != nil {
		return r, false, err
	}
	kind := b[7]
	if kind != unix.RTN_UNICAST && kind != unix.RTN_LOCAL || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return r, false, nil
	}
	hops, err := rtnl.ParseRouteOf(b, kind)
	if err != nil || len(hops) == 0 {
		return r, false, err
	}
	r = placedRoute{rawMessage: raw, Route: hops[0], kind: kind, tos: b[3], family: b[0]}
	over := slices.IndexFunc(hops, func(h rtnl.Route) bool { return h.Link == index })
	switch {
	case raw.value(rtnl.RTANexthopID) != nil:
		r.refused = "it is by a nexthop object"
	case raw.value(unix.RTA_MULTIPATH) != nil && r.family == unix.AF_INET:
		r.refused = "it has several hops"
	case raw.value(unix.RTA_MULTIPATH) != nil && over >= 0:
		r.hop(hops[over])
	}
	return r, over >= 0, nil
}

// hop reduces an IPv6 multipath route to one next hop. Each next hop is a route
// of its own in the kernel, which only reports them together.
func (r *placedRoute) hop(h rtnl.Route) {
	r.Route = h
	r.attrs = slices.DeleteFunc(slices.Clone(r.attrs), func(a rawAttr) bool { return a.kind == unix.RTA_MULTIPATH })
	if h.Via.IsValid() {
		r.attrs = append(r.attrs, rawAttr{unix.RTA_GATEWAY, h.Via.AsSlice()})
	}
	if h.OnLink {
		r.header[8] |= unix.RTNH_F_ONLINK
	}
}

// placedNeighs reads the neighbours of a link that can move to another link.
func placedNeighs(ctx context.Context, c *rtnl.Conn, index int, permanent bool) ([]rtnl.Neigh, error) {
	const useful = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE
	all, err := c.Neighs(ctx, unix.AF_UNSPEC, index, func(n *rtnl.Neigh) bool {
		wanted := n.State&useful != 0 || permanent && n.State&unix.NUD_PERMANENT != 0
		return wanted && n.IP.IsValid() && n.MAC != nil
	})
	return all, nlconn.Explain(err, "list neighbours")
}
