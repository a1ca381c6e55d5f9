package rtnl

import (
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Kinds of links that stand alone or on a parent, as the kernel names them.
const (
	KindMACVLAN = "macvlan"
	KindIPVLAN  = "ipvlan"
	KindVLAN    = "vlan"
	KindDummy   = "dummy"
	KindBridge  = "bridge"
	KindVRF     = "vrf"
	KindIFB     = "ifb"
	KindVXLAN   = "vxlan"
	// KindTap is the kernel's name for what /dev/net/tun makes: taps and tuns.
	KindTap = "tun"
)

// mode is a name of iproute2 and the number of the kernel (if_link.h).
type mode struct {
	name  string
	value uint32
}

// modesOf lists the modes of a kind; none for most.
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

// HasParent reports whether links of a kind stand on another link.
func HasParent(kind string) bool {
	return kind == KindMACVLAN || kind == KindIPVLAN || kind == KindVLAN || kind == KindVXLAN
}

// HasParentHere reports whether the link stands on one in its own namespace.
func (l *Link) HasParentHere() bool { return HasParent(l.Kind) && l.Peer != 0 && !l.PeerElsewhere }

// ModeValue is the kernel's number of a mode of a kind.
func ModeValue(kind, name string) (uint32, bool) {
	for _, m := range modesOf(kind) {
		if m.name == name {
			return m.value, true
		}
	}
	return 0, false
}

// KindState is what only links of these kinds have, as the kernel tells it.
type KindState struct {
	Mode       string
	bcQueueLen uint32
	VLANID     int
	VNI        int
	Table      int // a VRF's
	Tap        Tap
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

// noID is what the kernel has for a tap without an owner or group.
const noID = 1<<32 - 1

// Tap is what only a link of Kind "tun" has.
type Tap struct {
	IsTap, MultiQueue bool
	// Owner and group are nil for none.
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
