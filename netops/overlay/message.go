package overlay

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// hop is the target of a route.
type hop = rtnl.Hop

// opKind is a kind of kernel object of a peer. The objects are made in the order
// of the kinds.
type opKind uint8

const (
	opNeigh opKind = iota
	opFDB
	opPeer
	opHop
	opRoute
)

// kernelOp makes or deletes one kernel object of a peer.
type kernelOp struct {
	kind opKind
	del  bool
	// peer is nil for an object that does not belong to a peer any more.
	peer *peerEntry
	// link, ip and mac belong to a neighbour or a forwarding entry.
	link int
	ip   netip.Addr
	mac  MAC
	// key and wg belong to a peer of WireGuard.
	key Key
	wg  *wgPeer
	// id is the number of a nexthop object, or of the nexthop object that a route
	// uses. It is 0 for a route with its own hop.
	id  uint32
	hop hop
	// dst, protocol and priority belong to a route. guard is set if it refuses packets.
	guard    bool
	dst      netip.Prefix
	protocol uint8
	priority int32
}

// request returns the message's type and flags.
func (op *kernelOp) request() (kind, flags uint16) {
	kinds := [...][2]uint16{
		opNeigh: {unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH},
		opFDB:   {unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH},
		opHop:   {unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP},
		opRoute: {unix.RTM_NEWROUTE, unix.RTM_DELROUTE},
	}[op.kind]
	switch {
	case op.del:
		return kinds[1], 0
	case op.guard:
		return kinds[0], unix.NLM_F_CREATE | unix.NLM_F_EXCL
	case op.kind == opPeer:
		return 0, 0 // the kernel chooses the type when it registers the family
	}
	return kinds[0], unix.NLM_F_CREATE | unix.NLM_F_REPLACE
}

// body appends the message without its netlink header. The deletion of a route names the
// protocol and the metric, so that it does not delete another program's route.
func (op *kernelOp) body(to []byte) []byte {
	switch op.kind {
	case opNeigh, opFDB:
		n := rtnl.Neigh{Family: rtnl.Family(op.ip), Link: op.link, State: unix.NUD_PERMANENT, IP: op.ip}
		if op.kind == opFDB {
			n.Family, n.Flags = unix.AF_BRIDGE, unix.NTF_SELF
		}
		if op.kind == opFDB || !op.del {
			n.MAC = op.mac[:]
		}
		return n.Append(to)
	case opPeer:
		return op.peerBody(to)
	case opHop:
		n := rtnl.Nexthop{ID: op.id}
		if !op.del {
			n.Protocol, n.Hop = Protocol, op.hop
		}
		return n.Append(to)
	}
	r := rtnl.Route{Dst: op.dst, Protocol: op.protocol, Priority: int(op.priority), Table: unix.RT_TABLE_MAIN, Kind: unix.RTN_UNICAST}
	switch {
	case op.del:
		r.Scope, r.Kind = unix.RT_SCOPE_NOWHERE, unix.RTN_UNSPEC // any
	case op.guard:
		r.Kind = unix.RTN_UNREACHABLE
	case op.id != 0:
		r.NexthopID = op.id
	default:
		r.Via, r.Link, r.OnLink = op.hop.Via, int(op.hop.Link), op.hop.OnLink
		if !r.Via.IsValid() {
			r.Scope = unix.RT_SCOPE_LINK
		}
	}
	return r.Append(to)
}
