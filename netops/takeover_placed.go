package netops

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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

const (
	// Of linux/if_addr.h and linux/rtnetlink.h. x/sys/unix lacks them, or
	// some of its versions do.
	ifaRTPriority = 9
	ifaProto      = 11
	rtaExpires    = 23
	// userTicks is the number of ticks a second in the kernel's messages
	// (USER_HZ).
	userTicks = 100
)

// moveTarget holds the properties of the link that receives addresses and routes.
type moveTarget struct {
	// link and index identify the link. from is the name of the previous
	// link.
	link  string
	index int
	from  string
	// expires keeps lifetimes.
	expires bool
	// advertMetric is the metric of routes that the kernel adds for router
	// advertisements, or 0 if it ignores them.
	advertMetric int
}

// add returns the request that adds the address to the link.
func (a *placedAddr) add(to moveTarget) nlconn.Message {
	header := slices.Clone(a.header)
	header[2] = 0 // flags are sent as an attribute
	binary.NativeEndian.PutUint32(header[4:], uint32(to.index))
	keep := uint32(unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN)
	flags := uint32(0)
	if a.header[0] == unix.AF_INET6 {
		keep |= unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_HOMEADDRESS
		flags = unix.IFA_F_NODAD
	}
	flags |= a.Flags & keep
	m := nlconn.Message{Kind: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: header}
	a.copyTo(&m.Body, unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_BROADCAST, ifaRTPriority, ifaProto)
	m.Uint32(unix.IFA_FLAGS, flags)
	if label := a.label(to); label != "" {
		m.Text(unix.IFA_LABEL, label)
	}
	if life := a.value(unix.IFA_CACHEINFO); to.expires && a.header[0] == unix.AF_INET6 && len(life) >= 8 {
		info := append(slices.Clone(life[:8]), make([]byte, 8)...) // preferred, valid, and two times that are read-only
		m.Bytes(unix.IFA_CACHEINFO, info)
	}
	return m
}

// label returns the label of an IPv4 address: the link's name, or a label with
// that prefix.
func (a *placedAddr) label(to moveTarget) string {
	rest, ok := strings.CutPrefix(nlconn.Text(a.value(unix.IFA_LABEL)), to.from)
	if label := to.link + rest; ok && rest != "" && len(label) < unix.IFNAMSIZ {
		return label
	}
	return ""
}

// del returns the request that deletes the address from its present link.
func (a *placedAddr) del() nlconn.Message {
	m := nlconn.Message{Kind: unix.RTM_DELADDR, Body: slices.Clone(a.header)}
	a.copyTo(&m.Body, unix.IFA_LOCAL, unix.IFA_ADDRESS)
	return m
}

// add returns the request that adds the route to the link. The first route to a
// destination is prepended, and others are appended.
func (r *placedRoute) add(to moveTarget) nlconn.Message {
	if r.family == unix.AF_INET6 && r.Protocol == unix.RTPROT_RA && to.advertMetric != 0 && r.Priority == to.advertMetric {
		r = r.behind()
	}
	m := r.request(unix.RTM_NEWROUTE, to.index)
	m.Flags = unix.NLM_F_CREATE
	if !r.first || r.family == unix.AF_INET6 {
		m.Flags |= unix.NLM_F_APPEND
	}
	r.copyTo(&m.Body, unix.RTA_METRICS, unix.RTA_PREF, unix.RTA_ENCAP, unix.RTA_ENCAP_TYPE, unix.RTA_FLOW)
	if left := r.expires(); to.expires && left > 0 {
		m.Uint32(rtaExpires, left)
	}
	return m
}

// behind returns the route with its metric increased by one. A route with the
// kernel's metric that the kernel did not add would make it ignore the whole
// next advertisement (ndisc_router_discovery). With the higher metric the kernel
// can add its own route, and this route expires.
func (r *placedRoute) behind() *placedRoute {
	other := *r
	other.attrs = slices.DeleteFunc(slices.Clone(r.attrs), func(a rawAttr) bool { return a.kind == unix.RTA_PRIORITY })
	other.attrs = append(other.attrs, rawAttr{unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Priority) + 1)})
	return &other
}

// del returns the request that deletes the route.
func (r *placedRoute) del() nlconn.Message { return r.request(unix.RTM_DELROUTE, r.Link) }

// request returns a request with the attributes that identify the route.
func (r *placedRoute) request(kind uint16, link int) nlconn.Message {
	m := nlconn.Message{Kind: kind, Body: slices.Clone(r.header)}
	binary.NativeEndian.PutUint32(m.Body[8:], binary.NativeEndian.Uint32(r.header[8:])&unix.RTNH_F_ONLINK)
	m.Uint32(unix.RTA_OIF, uint32(link))
	r.copyTo(&m.Body, unix.RTA_DST, unix.RTA_SRC, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_PREFSRC, unix.RTA_PRIORITY, unix.RTA_TABLE)
	return m
}

// expires returns the remaining lifetime of an IPv6 route in seconds, or 0 if it
// is unlimited (struct rta_cacheinfo of linux/rtnetlink.h).
func (r *placedRoute) expires() uint32 {
	info := r.value(unix.RTA_CACHEINFO)
	if r.family != unix.AF_INET6 || len(info) < 12 {
		return 0
	}
	ticks := int32(binary.NativeEndian.Uint32(info[8:]))
	if ticks <= 0 {
		return 0
	}
	return uint32(ticks)/userTicks + 1
}

// addNeigh returns the request that adds the neighbour to the link.
func addNeigh(n rtnl.Neigh, to moveTarget) nlconn.Message {
	n.Link, n.Flags = to.index, n.Flags&unix.NTF_ROUTER
	if n.State&(unix.NUD_PERMANENT|unix.NUD_REACHABLE) == 0 {
		n.State = unix.NUD_STALE
	}
	return nlconn.Message{Kind: unix.RTM_NEWNEIGH, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: n.Append(nil)}
}

// object returns the address as plans and errors show it.
func (a *placedAddr) object(link string) Object {
	return &Addr{In: Host, Shared: true, Link: link, Address: a.Prefix}
}

func (r *placedRoute) object(link string) Object {
	o := routeOf(&r.Route, Host, link)
	o.Shared, o.Local = true, r.kind == unix.RTN_LOCAL
	return o
}
