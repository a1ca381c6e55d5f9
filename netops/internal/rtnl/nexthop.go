package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// sizeofNhmsg is the size of struct nhmsg of linux/nexthop.h.
const sizeofNhmsg = 8

// Hop is the target of a route: a neighbour on a link. OnLink disables the
// kernel's check that a network of the link contains the neighbour.
type Hop struct {
	Via    netip.Addr
	Link   int32
	OnLink bool
}

// Nexthop is a nexthop object. Groups and blackholes have no hop.
type Nexthop struct {
	ID       uint32
	Protocol uint8
	Hop      Hop
}

func (n *Nexthop) attrs() []nlconn.Attr {
	return []nlconn.Attr{{Kind: unix.NHA_ID, At: &n.ID}, {Kind: unix.NHA_OIF, At: &n.Hop.Link}, {Kind: unix.NHA_GATEWAY, At: &n.Hop.Via}}
}

// Append appends the body of a request. A deletion has only the ID.
func (n *Nexthop) Append(b nlconn.Body) nlconn.Body {
	family, flags := uint8(unix.AF_UNSPEC), uint32(0)
	if n.Hop.Via.IsValid() {
		family = Family(n.Hop.Via)
	}
	if n.Hop.OnLink {
		flags = unix.RTNH_F_ONLINK
	}
	b = binary.NativeEndian.AppendUint32(append(b, family, 0, n.Protocol, 0), flags)
	b.Attrs(n.attrs())
	return b
}

// ParseNexthop reads the body of RTM_NEWNEXTHOP or RTM_DELNEXTHOP.
func ParseNexthop(b []byte) (n Nexthop, err error) {
	if len(b) < sizeofNhmsg {
		return n, fmt.Errorf("nexthop message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	n.Protocol = b[2]
	n.Hop.OnLink = binary.NativeEndian.Uint32(b[4:])&unix.RTNH_F_ONLINK != 0
	err = nlconn.ReadAttrs(b[sizeofNhmsg:], n.attrs())
	return n, err
}
