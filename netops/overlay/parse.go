package overlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// neighState is a neighbour, or an entry of a VXLAN device's forwarding database,
// in any state.
type neighState struct {
	fdb, permanent bool
	link           int
	ip             netip.Addr
	mac            hwAddr
}

// parseNeigh reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. ok is true only for
// an IP neighbour or a device's own forwarding entry.
func parseNeigh(b []byte) (n neighState, ok bool, err error) {
	if len(b) < rtnl.SizeofNeighHeader {
		return n, false, fmt.Errorf("neighbour message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	n.link = int(int32(binary.NativeEndian.Uint32(b[4:])))
	n.permanent = binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0
	switch b[0] {
	case unix.AF_INET, unix.AF_INET6:
	case unix.AF_BRIDGE:
		n.fdb = true
		if b[10]&unix.NTF_SELF == 0 {
			return n, false, nil
		}
	default:
		return n, false, nil
	}
	hardware := false
	err = nlconn.EachAttr(b[rtnl.SizeofNeighHeader:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_DST:
			n.ip, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			hardware = copy(n.mac[:], v) == len(n.mac)
		}
		return nil
	})
	return n, err == nil && n.ip.IsValid() && (hardware || !n.permanent), err
}

// hopState is a nexthop object.
type hopState struct {
	id       uint32
	protocol uint8
	hop      hop
}

// parseNexthop reads the body of RTM_NEWNEXTHOP or RTM_DELNEXTHOP. Groups and
// blackholes have no hop.
func parseNexthop(b []byte) (n hopState, err error) {
	if len(b) < sizeofNhmsg {
		return n, fmt.Errorf("nexthop message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	n.protocol = b[2]
	n.hop.onLink = binary.NativeEndian.Uint32(b[4:])&unix.RTNH_F_ONLINK != 0
	err = nlconn.EachAttr(b[sizeofNhmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NHA_ID:
			n.id = uint32(nlconn.Int(v))
		case unix.NHA_OIF:
			n.hop.link = int32(nlconn.Int(v))
		case unix.NHA_GATEWAY:
			n.hop.via, _ = netip.AddrFromSlice(v)
		}
		return nil
	})
	return n, err
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
	if len(b) < unix.SizeofRtMsg {
		return r, false, fmt.Errorf("route message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	if b[4] != unix.RT_TABLE_MAIN || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return r, false, nil
	}
	r.protocol, r.kind = b[5], b[7]
	dst := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	var h hop
	h.onLink = binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK != 0
	err = nlconn.EachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			r.priority = int32(nlconn.Int(v))
		case unix.RTA_GATEWAY:
			h.via, _ = netip.AddrFromSlice(v)
		case unix.RTA_OIF:
			h.link = int32(nlconn.Int(v))
		case rtnl.RTANexthopID:
			r.id = uint32(nlconn.Int(v))
		}
		return nil
	})
	r.dst, r.linked = netip.PrefixFrom(dst, int(b[1])), h.link
	if r.id == 0 {
		r.hop = h
	}
	return r, err == nil && r.dst.IsValid(), err
}

// isFromFlannel reports whether a route has the form that flannel gives it: protocol
// boot, onlink, and the first address of its network as the gateway.
func (r *routeState) isFromFlannel() bool {
	return r.protocol == unix.RTPROT_BOOT && r.hop.onLink && r.hop.via == r.dst.Addr()
}
