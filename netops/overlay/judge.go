package overlay

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// disturbedBy evaluates events and reports whether Apply must be called: the
// remembered state is no longer correct, or the route to a gateway may have
// changed. The events of the overlay's own requests match the remembered state.
func (o *Kernel) disturbedBy(events []event, lost bool) bool {
	moved := lost && len(o.direct) > 0
	disturbed := lost
	for i := range events {
		if events[i].after < o.mark {
			continue // the event happened before the last read of the kernel
		}
		d, m := o.evaluateEvent(&events[i])
		disturbed, moved = disturbed || d, moved || m
	}
	if o.order == nil && o.wanted == nil {
		return false // Apply was not called yet
	}
	if disturbed {
		o.known, o.disturbed = false, true
	}
	o.moved = o.moved || moved
	return disturbed || moved || o.detoured
}

func (o *Kernel) evaluateEvent(e *event) (disturbed, moved bool) {
	switch b := e.body.(type) {
	case *rtnl.Link:
		return o.evaluateLink(b, e.del)
	case rtnl.Addr:
		return o.evaluateAddr(&b, e.del)
	case routeState:
		return o.evaluateRoute(b, e.del)
	case neighState:
		return o.evaluateNeigh(&b, e.del), false
	case forwardingState:
		return b.off && (b.link == allLinks || int(b.link) == o.device.Index), false
	case rtnl.Nexthop:
		have, ok := o.have.hops[b.ID]
		return ok && (e.del || have != b.Hop), false
	}
	return false, false
}

// evaluateLink evaluates the event of a link. If a link goes down or is deleted, the
// kernel deletes its routes and nexthops without notifications.
func (o *Kernel) evaluateLink(l *rtnl.Link, del bool) (disturbed, moved bool) {
	const state = unix.IFF_UP | unix.IFF_RUNNING
	if w := o.wanted; w != nil {
		have := &o.device
		switch {
		case l.Index == have.Index && have.Index != 0: // the event of a change of the offload does not have it
			disturbed = del || w.TxChecksum != "" || l.Name != have.Name || l.IsUp() != have.IsUp() || l.MTU != have.MTU ||
				l.Master != have.Master || l.IsNoARP() != have.IsNoARP() || l.Alias != have.Alias ||
				!slices.Equal(l.MAC, have.MAC) || l.VXLAN.Local != have.VXLAN.Local || l.Peer != have.Peer || l.VXLAN.Learning != have.VXLAN.Learning
		case l.Name == w.Name, have.Index == 0 && del:
			disturbed = true
		case l.Name == w.Parent, o.parent != nil && l.Index == o.parent.Index:
			p := o.parent
			disturbed = del || p == nil || l.Index != p.Index || l.Name != p.Name || l.MTU != p.MTU || l.Flags&state != p.Flags&state
		}
		if disturbed && !del && o.parent != nil && l.Index == o.parent.Index {
			o.parent = l
		}
	}
	if o.hasGatewayOn(l.Index) {
		if flags, known := o.linkFlags[l.Index]; del || !known || flags != l.Flags&state {
			disturbed, moved = true, true
		}
		o.linkFlags[l.Index] = l.Flags & state
	}
	// The detour may have been over this link.
	disturbed = disturbed || o.hasDetours && (del || !l.IsUp())
	// A link that comes up may have a gateway that is on no link yet.
	return disturbed, moved || !del && len(o.direct) > 0 && l.Flags&state == state && o.hasUnlinkedGateway()
}

// hasGatewayOn reports whether a gateway is on the link.
func (o *Kernel) hasGatewayOn(link int) bool {
	for _, h := range o.direct {
		if int(h.Link) == link {
			return true
		}
	}
	return false
}

// hasUnlinkedGateway reports whether a gateway is not on any link.
func (o *Kernel) hasUnlinkedGateway() bool { return o.hasGatewayOn(0) }

func (o *Kernel) evaluateAddr(a *rtnl.Addr, del bool) (disturbed, moved bool) {
	if w := o.wanted; w != nil && a.Link == o.device.Index && o.device.Index != 0 {
		if a.Prefix == w.Address {
			return del, false
		}
		return !del && w.Network.IsValid() && w.Network.Contains(a.Prefix.Addr()), false
	}
	linked := o.hasGatewayOn(a.Link)
	if o.isWireGuard() {
		return linked, linked // of other links only routes count: interfaces of pods get addresses all the time
	}
	return linked, len(o.direct) > 0
}

func (o *Kernel) evaluateNeigh(n *neighState, del bool) bool {
	if n.fdb {
		have, ok := o.have.fdb[n.mac]
		if del {
			return ok && have == n.ip
		}
		return n.permanent && have != n.ip
	}
	have, ok := o.have.neighs[n.ip]
	if del {
		return ok
	}
	return ok && !n.permanent || n.permanent && have != n.mac
}

func (o *Kernel) evaluateRoute(r routeState, del bool) (disturbed, moved bool) {
	if o.isGuard(&r) {
		return del, false
	}
	over := r.linked != 0 && int(r.linked) == o.device.Index
	if o.inNetwork(r.dst) && !o.isOwnRoute(&r, o.device.Index) {
		o.detoured = true
		if del {
			delete(o.have.foreign, r.foreign())
		} else {
			o.have.foreign[r.foreign()] = struct{}{}
		}
	}
	have, ok := o.have.routes[r.dst]
	_, wanted := o.peers.subnet(r.dst)
	switch {
	case del:
		disturbed = ok && have == r.routeTo
	case ok && have == r.routeTo:
	default:
		disturbed = r.protocol == Protocol || over && r.isFromFlannel() ||
			r.priority == o.priority() && wanted
	}
	if r.protocol == Protocol {
		return disturbed, false
	}
	for gateway := range o.direct {
		if r.dst.Contains(gateway) {
			return disturbed, true
		}
	}
	return disturbed, false
}
