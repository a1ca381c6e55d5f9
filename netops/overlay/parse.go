package overlay

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

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
