package rtnl

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The kernel's names of the link kinds. Some kinds have a parent link, the others
// do not.
const (
	KindMACVLAN = "macvlan"
	KindIPVLAN  = "ipvlan"
	KindVLAN    = "vlan"
	KindDummy   = "dummy"
	KindBridge  = "bridge"
	KindVRF     = "vrf"
	KindIFB     = "ifb"
	KindVXLAN   = "vxlan"
	// KindWireGuard needs CONFIG_WIREGUARD, since Linux 5.6.
	KindWireGuard = "wireguard"
	// KindTap is the kernel's name for the links that /dev/net/tun makes: taps
	// and tuns.
	KindTap = "tun"
)

// mode is a mode's name in iproute2 and its number in the kernel (if_link.h).
type mode struct {
	name  string
	value uint32
}

// modesOf lists the modes of a kind. Most kinds have none.
func modesOf(kind string) []mode {
	switch kind {
	case KindMACVLAN:
		return []mode{
			{"private", nl.MACVLAN_MODE_PRIVATE},
			{"vepa", nl.MACVLAN_MODE_VEPA},
			{"bridge", nl.MACVLAN_MODE_BRIDGE},
			{"passthru", nl.MACVLAN_MODE_PASSTHRU},
		}
	case KindIPVLAN:
		return []mode{{"l2", 0}, {"l3", 1}, {"l3s", 2}} // IPVLAN_MODE_*
	}
	return nil
}

// HasParent reports whether links of a kind have a parent link.
func HasParent(kind string) bool {
	return kind == KindMACVLAN || kind == KindIPVLAN || kind == KindVLAN || kind == KindVXLAN
}

// HasParentHere reports whether the link has a parent in its own namespace.
func (l *Link) HasParentHere() bool { return HasParent(l.Kind) && l.Peer != 0 && !l.PeerElsewhere }

// ModeValue returns the kernel's number of a mode of a kind.
func ModeValue(kind, name string) (uint32, bool) {
	for _, m := range modesOf(kind) {
		if m.name == name {
			return m.value, true
		}
	}
	return 0, false
}

// KindState holds the attributes that only some link kinds have.
type KindState struct {
	Mode       string
	bcQueueLen uint32
	VLANID     int
	// VNI, UDPPort and Local are a VXLAN device's.
	VNI     int
	UDPPort uint16
	Local   netip.Addr
	Table   int // a VRF's table
	Tap     Tap
}

// parseKind reads the IFLA_INFO_DATA of a link.
func (l *Link) parseKind(data []byte) error {
	return nlconn.EachAttr(data, func(kind uint16, v []byte) error {
		switch {
		case l.Kind == KindMACVLAN && kind == nl.IFLA_MACVLAN_MODE:
			l.Mode = modeName(l.Kind, nlconn.Int(v))
		case l.Kind == KindMACVLAN && kind == nl.IFLA_MACVLAN_BC_QUEUE_LEN:
			l.bcQueueLen = uint32(nlconn.Int(v))
		case l.Kind == KindIPVLAN && kind == nl.IFLA_IPVLAN_MODE:
			l.Mode = modeName(l.Kind, nlconn.Short(v))
		case l.Kind == KindVLAN && kind == nl.IFLA_VLAN_ID:
			l.VLANID = nlconn.Short(v)
		case l.Kind == KindVXLAN && kind == nl.IFLA_VXLAN_ID:
			l.VNI = nlconn.Int(v)
		case l.Kind == KindVXLAN && kind == nl.IFLA_VXLAN_PORT && len(v) >= 2:
			l.UDPPort = binary.BigEndian.Uint16(v)
		case l.Kind == KindVXLAN && (kind == nl.IFLA_VXLAN_LOCAL || kind == nl.IFLA_VXLAN_LOCAL6):
			l.Local, _ = netip.AddrFromSlice(v)
		case l.Kind == KindVXLAN && kind == nl.IFLA_VXLAN_LINK:
			l.Peer = nlconn.Int(v) // a VXLAN device has no IFLA_LINK
		case l.Kind == KindVRF && kind == nl.IFLA_VRF_TABLE:
			l.Table = nlconn.Int(v)
		case l.Kind == KindTap:
			l.Tap.parse(kind, v)
		}
		return nil
	})
}

func modeName(kind string, value int) string {
	for _, m := range modesOf(kind) {
		if int(m.value) == value {
			return m.name
		}
	}
	return strconv.Itoa(value)
}

// noID is the kernel's value for a tap without an owner or group.
const noID = 1<<32 - 1

// Tap holds the attributes that only a link of kind "tun" has.
type Tap struct {
	IsTap, MultiQueue bool
	// Owner and Group are nil if none is set.
	Owner, Group *uint32
}

func (t *Tap) parse(kind uint16, v []byte) {
	switch kind {
	case nl.IFLA_TUN_TYPE:
		t.IsTap = nlconn.Byte(v) == unix.IFF_TAP
	case nl.IFLA_TUN_MULTI_QUEUE:
		t.MultiQueue = nlconn.Byte(v) != 0
	case nl.IFLA_TUN_OWNER:
		t.Owner = tapID(v)
	case nl.IFLA_TUN_GROUP:
		t.Group = tapID(v)
	}
}

func tapID(v []byte) *uint32 {
	id := uint32(nlconn.Int(v))
	if id == noID {
		return nil
	}
	return &id
}
