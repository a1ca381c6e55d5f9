package overlay

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// sizeofNhmsg is the size of struct nhmsg of linux/nexthop.h.
const sizeofNhmsg = 8

// hop is the target of a route: a neighbour on a link. onLink disables the
// kernel's check that a network of the link contains the neighbour.
type hop struct {
	via    netip.Addr
	link   int32
	onLink bool
}

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

// body appends the message without its netlink header.
func (op *kernelOp) body(to []byte) []byte {
	b := nlconn.Body(to)
	switch op.kind {
	case opNeigh:
		b = appendNdmsg(b, rtnl.Family(op.ip), op.link, 0)
		b.Bytes(unix.NDA_DST, op.ip.AsSlice())
		if !op.del {
			b.Bytes(unix.NDA_LLADDR, op.mac[:])
		}
	case opFDB:
		b = appendNdmsg(b, unix.AF_BRIDGE, op.link, unix.NTF_SELF)
		b.Bytes(unix.NDA_LLADDR, op.mac[:])
		b.Bytes(unix.NDA_DST, op.ip.AsSlice())
	case opPeer:
		b = op.peerBody(b)
	case opHop:
		b = op.hopBody(b)
	case opRoute:
		b = op.routeBody(b)
	}
	return b
}

// appendNdmsg appends struct ndmsg of a permanent entry.
func appendNdmsg(b nlconn.Body, family uint8, link int, flags uint8) nlconn.Body {
	m := rtnl.NeighHeader{Family: family, Index: uint32(link), State: unix.NUD_PERMANENT, Flags: flags}
	return append(b, m.Serialize()...)
}

// hopBody appends struct nhmsg and its attributes.
func (op *kernelOp) hopBody(b nlconn.Body) nlconn.Body {
	if op.del {
		b = append(b, unix.AF_UNSPEC, 0, 0, 0, 0, 0, 0, 0)
		b.Uint32(unix.NHA_ID, op.id)
		return b
	}
	b = append(b, rtnl.Family(op.hop.via), 0, Protocol, 0)
	b = binary.NativeEndian.AppendUint32(b, op.hop.flags())
	b.Uint32(unix.NHA_ID, op.id)
	b.Uint32(unix.NHA_OIF, uint32(op.hop.link))
	b.Bytes(unix.NHA_GATEWAY, op.hop.via.AsSlice())
	return b
}

func (h hop) flags() uint32 {
	if h.onLink {
		return unix.RTNH_F_ONLINK
	}
	return 0
}

// routeBody appends struct rtmsg and its attributes. A deletion names the
// protocol and the metric, so that it does not delete another program's route.
func (op *kernelOp) routeBody(b nlconn.Body) nlconn.Body {
	scope, flags, kind := uint8(unix.RT_SCOPE_UNIVERSE), uint32(0), uint8(unix.RTN_UNICAST)
	switch {
	case op.del:
		scope, kind = unix.RT_SCOPE_NOWHERE, unix.RTN_UNSPEC // any
	case op.guard:
		kind = unix.RTN_UNREACHABLE
	case op.id == 0:
		flags = op.hop.flags()
		if !op.hop.via.IsValid() {
			scope = unix.RT_SCOPE_LINK
		}
	}
	b = append(b, rtnl.Family(op.dst.Addr()), uint8(op.dst.Bits()), 0, 0, unix.RT_TABLE_MAIN, op.protocol, scope, kind)
	b = binary.NativeEndian.AppendUint32(b, flags)
	b.Bytes(unix.RTA_DST, op.dst.Addr().AsSlice())
	if op.priority != 0 {
		b.Uint32(unix.RTA_PRIORITY, uint32(op.priority))
	}
	switch {
	case op.del, op.guard:
	case op.id != 0:
		b.Uint32(rtnl.RTANexthopID, op.id)
	default:
		if op.hop.via.IsValid() {
			b.Bytes(unix.RTA_GATEWAY, op.hop.via.AsSlice())
		}
		b.Uint32(unix.RTA_OIF, uint32(op.hop.link))
	}
	return b
}
