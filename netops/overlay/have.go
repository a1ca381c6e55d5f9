package overlay

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// kernelState is the overlay's state in the kernel, as it was read or made. Its
// objects belong to the overlay because of their device, their nexthop number or
// their route protocol.
type kernelState struct {
	neighs map[netip.Addr]MAC
	// fdb has the destination of each MAC. The zero Addr means that the MAC has
	// several destinations, which are all in surplus.
	fdb map[MAC]netip.Addr
	// wg has the peers of a WireGuard device, and allowed the peer of each network.
	wg      map[Key]wgPeer
	allowed map[netip.Prefix]Key
	hops    map[uint32]hop
	// ids is the inverse of hops.
	ids    map[hop]uint32
	routes map[netip.Prefix]routeTo
	// foreign has other programs' routes in the cluster's pod network.
	foreign map[foreignRoute]struct{}
	// surplus has the deletions of additional objects: more destinations or
	// routes with the same key.
	surplus []kernelOp
}

// foreignRoute identifies another program's route.
type foreignRoute struct {
	dst      netip.Prefix
	via      netip.Addr
	priority int32
	protocol uint8
}

func newKernelState() *kernelState {
	return &kernelState{
		foreign: map[foreignRoute]struct{}{}, wg: map[Key]wgPeer{}, allowed: map[netip.Prefix]Key{},
		neighs: map[netip.Addr]MAC{}, fdb: map[MAC]netip.Addr{},
		hops: map[uint32]hop{}, ids: map[hop]uint32{}, routes: map[netip.Prefix]routeTo{},
	}
}

// update applies a change that the kernel has made.
func (h *kernelState) update(op *kernelOp) {
	switch {
	case op.kind == opNeigh && op.del:
		delete(h.neighs, op.ip)
	case op.kind == opNeigh:
		h.neighs[op.ip] = op.mac
	case op.kind == opFDB && op.del:
		if h.fdb[op.mac] == op.ip {
			delete(h.fdb, op.mac)
		}
	case op.kind == opFDB:
		h.fdb[op.mac] = op.ip
	case op.kind == opPeer:
		h.setPeer(op.key, op.wg)
	case op.kind == opHop && op.del:
		delete(h.ids, h.hops[op.id])
		delete(h.hops, op.id)
	case op.kind == opHop:
		h.hops[op.id], h.ids[op.hop] = op.hop, op.id
	case op.del:
		delete(h.foreign, foreignRoute{op.dst, op.hop.Via, op.priority, op.protocol})
		if have := h.routes[op.dst]; have.protocol == op.protocol && have.priority == op.priority {
			delete(h.routes, op.dst)
		}
	default:
		h.routes[op.dst] = op.route()
	}
}

// has reports whether the state has the object that the op makes, or one in the place of the object that it deletes.
func (h *kernelState) has(op *kernelOp) (ok bool) {
	switch op.kind {
	case opNeigh:
		mac, ok := h.neighs[op.ip]
		return ok && (op.del || mac == op.mac)
	case opFDB:
		return h.fdb[op.mac] == op.ip
	case opPeer:
		p, ok := h.wg[op.key]
		return ok && (op.del || p.allowed == op.wg.allowed && (p.endpoint == op.wg.endpoint || !op.wg.endpoint.IsValid()))
	case opHop:
		_, ok = h.hops[op.id]
		if !op.del {
			_, ok = h.ids[op.hop]
		}
		return ok
	}
	r, ok := h.routes[op.dst]
	if r.id != 0 {
		r.hop = h.hops[r.id]
	}
	return ok && (op.del || r.hop == op.hop)
}

// setPeer sets a peer of WireGuard, or removes it if p is nil. A network that another peer
// had is taken from that peer.
func (h *kernelState) setPeer(key Key, p *wgPeer) {
	for _, n := range h.wg[key].allowed {
		if h.allowed[n] == key {
			delete(h.allowed, n)
		}
	}
	if p == nil {
		delete(h.wg, key)
		return
	}
	h.wg[key] = *p
	for i, n := range p.allowed {
		if !n.IsValid() {
			continue
		}
		if other, ok := h.allowed[n]; ok {
			former := h.wg[other]
			former.allowed[i] = netip.Prefix{}
			h.wg[other] = former
		}
		h.allowed[n] = key
	}
}

// route returns the route that the op makes.
func (op *kernelOp) route() routeTo {
	r := routeTo{kind: unix.RTN_UNICAST, protocol: op.protocol, priority: op.priority, id: op.id}
	if op.id == 0 {
		r.hop = op.hop
	}
	return r
}

// read reads the overlay's state from the kernel. link is the device's index, 0
// for none.
func (o *Kernel) read(ctx context.Context, link int) (*kernelState, error) {
	h := newKernelState()
	switch {
	case link == 0:
	case o.isWireGuard() && link == o.device.Index:
		d, err := o.readWG(ctx, link)
		if err != nil {
			return nil, err
		}
		for key, p := range d.peers {
			h.setPeer(key, &p)
		}
	default:
		for _, fdb := range []bool{false, true} {
			if err := o.readNeighs(ctx, h, link, fdb); err != nil {
				return nil, nlconn.Explain(err, "list neighbours")
			}
		}
	}
	if err := o.readHops(ctx, h); err != nil {
		return nil, nlconn.Explain(err, "list nexthops")
	}
	if err := o.readRoutes(ctx, h, link); err != nil {
		return nil, nlconn.Explain(err, "list routes")
	}
	return h, nil
}

func (o *Kernel) readNeighs(ctx context.Context, h *kernelState, link int, fdb bool) error {
	family := o.family
	if fdb {
		family = unix.AF_BRIDGE
	}
	reset := func() {
		h.surplus = nil
		if fdb {
			clear(h.fdb)
		} else {
			clear(h.neighs)
		}
	}
	return o.conn.Dump(ctx, rtnl.NeighsMessage(family, link), reset, func(_ uint16, data []byte) error {
		n, ok, err := parseNeigh(data)
		if err == nil && ok && n.link == link && n.permanent && n.fdb == fdb {
			h.addNeigh(n)
		}
		return err
	})
}

// addNeigh adds a neighbour or a forwarding entry. If a MAC has several
// destinations, all of them are surplus: the kernel replaces the first one and
// does not report which one is first.
func (h *kernelState) addNeigh(n neighState) {
	if !n.fdb {
		h.neighs[n.ip] = n.mac
		return
	}
	surplus := func(ip netip.Addr) {
		h.surplus = append(h.surplus, kernelOp{kind: opFDB, del: true, link: n.link, mac: n.mac, ip: ip})
	}
	switch first, more := h.fdb[n.mac]; {
	case !more:
		h.fdb[n.mac] = n.ip
		return
	case first.IsValid():
		surplus(first)
		h.fdb[n.mac] = netip.Addr{}
	}
	surplus(n.ip)
}

func (o *Kernel) readHops(ctx context.Context, h *kernelState) error {
	m := nlconn.Message{Kind: unix.RTM_GETNEXTHOP, Body: nlconn.Body{o.family, 0, 0, 0, 0, 0, 0, 0}}
	err := o.conn.Dump(ctx, m, func() { clear(h.hops); clear(h.ids) }, func(_ uint16, data []byte) error {
		n, err := rtnl.ParseNexthop(data)
		if err == nil && o.isOwnHop(n.ID) {
			h.hops[n.ID] = n.Hop
			h.ids[n.Hop] = n.ID
		}
		return err
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		o.noHops = true
		return nil
	}
	return err
}

// isOwnHop reports whether the number of a nexthop object is in the overlay's
// range.
func (o *Kernel) isOwnHop(id uint32) bool { return id-o.firstHop < 1<<23 }

// readRoutes reads the main table: the routes with the route protocol Protocol, flannel's routes over
// the device, and other programs' routes in the pod network.
func (o *Kernel) readRoutes(ctx context.Context, h *kernelState, link int) error {
	all, err := o.mainRoutes(ctx, func(r *routeState) bool {
		return !o.isGuard(r) && (o.isOwnRoute(r, link) || o.inNetwork(r.dst))
	})
	if err != nil {
		return err
	}
	for _, r := range all {
		if o.isOwnRoute(&r, link) {
			h.addRoute(r, o.priority())
		} else {
			h.foreign[r.foreign()] = struct{}{}
		}
	}
	return nil
}

// mainRoutes returns the selected routes of the main table.
func (o *Kernel) mainRoutes(ctx context.Context, selected func(*routeState) bool) (all []routeState, err error) {
	rtm := &nl.RtMsg{RtMsg: unix.RtMsg{Family: o.family, Table: unix.RT_TABLE_MAIN}}
	err = o.conn.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETROUTE, Header: rtm}, func() { all = nil }, func(_ uint16, data []byte) error {
		r, ok, err := parseRoute(data)
		if err == nil && ok && selected(&r) {
			all = append(all, r)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return all, err
}

// isOwnRoute reports whether a route is the overlay's, or flannel's over the overlay's device. With
// WireGuard it is flannel's over any device, because packets over another device are not encrypted.
func (o *Kernel) isOwnRoute(r *routeState, link int) bool {
	switch {
	case r.protocol == Protocol:
		return r.kind == unix.RTN_UNICAST || r.kind == unix.RTN_UNREACHABLE
	case o.isWireGuard():
		return r.isFromFlannel() && o.inNetwork(r.dst)
	}
	return r.kind == unix.RTN_UNICAST && link != 0 && int(r.linked) == link && r.isFromFlannel()
}

// isGuard reports whether a route is the guard of a WireGuard device. Without such a device the guard
// is surplus, except for RemoveToGuard.
func (o *Kernel) isGuard(r *routeState) bool {
	return (o.isWireGuard() && r.dst == o.network || o.keepGuard) && r.refuses()
}

// refuses reports whether a route is the guard of any network.
func (r *routeState) refuses() bool {
	return r.kind == unix.RTN_UNREACHABLE && r.protocol == Protocol && r.priority == guardPriority
}

// inNetwork reports whether a network is in the cluster's pod network.
func (o *Kernel) inNetwork(p netip.Prefix) bool {
	return o.network.IsValid() && o.network.Contains(p.Addr()) && p.Bits() >= o.network.Bits()
}

// addRoute keeps one route for each destination: the route that a new route of
// the overlay would replace. All other routes are surplus.
func (h *kernelState) addRoute(r routeState, priority int32) {
	have, more := h.routes[r.dst]
	if !more && r.priority == priority {
		h.routes[r.dst] = r.routeTo
		return
	}
	h.surplus = append(h.surplus, kernelOp{kind: opRoute, del: true, dst: r.dst, protocol: r.protocol, priority: r.priority})
	if more && have.protocol == r.protocol && have.priority == r.priority {
		delete(h.routes, r.dst) // the deletion may delete either route
	}
}

// priority returns the metric that the kernel gives to a route without a metric.
func (o *Kernel) priority() int32 {
	if o.family == unix.AF_INET6 {
		return 1024 // IP6_RT_PRIO_USER of linux/ipv6_route.h
	}
	return 0
}

// neighState is a neighbour, or an entry of a VXLAN device's forwarding database,
// in any state.
type neighState struct {
	fdb, permanent bool
	link           int
	ip             netip.Addr
	mac            MAC
}

// parseNeigh reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. ok is true only for
// an IP neighbour or a device's own forwarding entry.
func parseNeigh(b []byte) (n neighState, ok bool, err error) {
	have, err := rtnl.ParseNeigh(b)
	n = neighState{fdb: have.Family == unix.AF_BRIDGE, permanent: have.State&unix.NUD_PERMANENT != 0, link: have.Link, ip: have.IP}
	hardware := copy(n.mac[:], have.MAC) == len(n.mac)
	own := n.fdb && have.Flags&unix.NTF_SELF != 0 || have.Family == unix.AF_INET || have.Family == unix.AF_INET6
	return n, err == nil && own && n.ip.IsValid() && (hardware || !n.permanent), err
}

// routeState is a route of the main table. A route with a nexthop object has the
// object's id and an empty hop.
type routeState struct {
	dst netip.Prefix
	// linked is the output device of the route, also with a nexthop object.
	linked int32
	routeTo
}

// routeTo is a route without its destination, which is the map key. It is small,
// because there may be many routes.
type routeTo struct {
	hop      hop
	id       uint32
	priority int32
	kind     uint8 // RTN_*
	protocol uint8
}

// parseRoute reads the body of RTM_NEWROUTE or RTM_DELROUTE. ok is false for
// routes of other tables.
func parseRoute(b []byte) (r routeState, ok bool, err error) {
	have, _, err := rtnl.ParseHops(b)
	if err != nil || have.Table != unix.RT_TABLE_MAIN || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return r, false, err
	}
	r = routeState{dst: have.Dst, linked: int32(have.Link)}
	r.routeTo = routeTo{id: have.NexthopID, priority: int32(have.Priority), kind: have.Kind, protocol: have.Protocol}
	if r.id == 0 {
		r.hop = hop{Via: have.Via, Link: r.linked, OnLink: have.OnLink}
	}
	return r, r.dst.IsValid(), nil
}

func (r *routeState) foreign() foreignRoute {
	return foreignRoute{r.dst, r.hop.Via, r.priority, r.protocol}
}

// isFromFlannel reports whether a route has the form that flannel gives it: protocol
// boot, onlink, and the first address of its network as the gateway.
func (r *routeState) isFromFlannel() bool {
	return r.protocol == unix.RTPROT_BOOT && r.hop.OnLink && r.hop.Via == r.dst.Addr()
}
