package rtnl

import (
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The kernel's names of the link kinds. Some kinds have a parent link, the others
// do not.
const (
	KindVeth = "veth"
	// KindNetkit needs CONFIG_NETKIT, since Linux 6.7.
	KindNetkit  = "netkit"
	KindMACVLAN = "macvlan"
	KindIPVLAN  = "ipvlan"
	KindVLAN    = "vlan"
	KindDummy   = "dummy"
	KindBridge  = "bridge"
	KindVRF     = "vrf"
	KindIFB     = "ifb"
	KindVXLAN   = "vxlan"
	KindBond    = "bond"
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
	case KindNetkit:
		return []mode{{"l2", 0}, {"l3", 1}} // NETKIT_L2 and NETKIT_L3 of if_link.h
	case KindBond: // BOND_MODE_* of linux/if_bonding.h
		return []mode{
			{"balance-rr", 0}, {"active-backup", 1}, {"balance-xor", 2}, {"broadcast", 3}, {"802.3ad", 4}, {"balance-tlb", 5}, {"balance-alb", 6},
		}
	}
	return nil
}

// IsPairEnd reports whether links of a kind are made in pairs: what one end sends, the other receives. A link's peer is the other end.
func IsPairEnd(kind string) bool { return kind == KindVeth || kind == KindNetkit }

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
	Mode          string
	BCQueueLen    uint32
	VLANID        uint16
	VNI           uint32
	Table         int // a VRF's table
	VLANFiltering bool
	Filter4       bool   // a bridge's packets of IPv4 pass nftables' inet family
	Filter6       bool   // and those of IPv6
	STP           uint32 // the state of a bridge's spanning tree protocol
	Tap           Tap
	VXLAN         VXLAN
	Bond          Bond
	// PeerInfo has the header and the attributes of a pair's other end, in a request.
	PeerInfo   []byte
	mode       uint32
	ipvlanMode uint16
	bondMode   uint8
}

// VXLAN holds the attributes that only a VXLAN device has. Its parent is Link.Peer.
type VXLAN struct {
	Port         nlconn.BigEndian16
	Local, Group netip.Addr
	Learning     bool
	GBP          nlconn.Flag
	// The others report other uses of the device: metadata mode, answers to requests for addresses,
	// and notifications of misses.
	Metadata, Proxy, Resolve, L2Misses, L3Misses bool
}

// attrs describes IFLA_INFO_DATA of the link's kind.
func (l *Link) attrs() []nlconn.Attr {
	switch x := &l.VXLAN; l.Kind {
	case KindBridge:
		return []nlconn.Attr{
			{Kind: nl.IFLA_BR_VLAN_FILTERING, At: &l.VLANFiltering},
			{Kind: nl.IFLA_BR_STP_STATE, At: &l.STP},
			{Kind: nl.IFLA_BR_NF_CALL_IPTABLES, At: &l.Filter4},
			{Kind: nl.IFLA_BR_NF_CALL_IP6TABLES, At: &l.Filter6},
		}
	case KindVeth:
		return []nlconn.Attr{{Kind: nl.VETH_INFO_PEER | unix.NLA_F_NESTED, At: &l.PeerInfo}}
	case KindNetkit:
		return []nlconn.Attr{
			{Kind: nl.IFLA_NETKIT_PEER_INFO | unix.NLA_F_NESTED, At: &l.PeerInfo},
			{Kind: nl.IFLA_NETKIT_MODE, At: &l.mode, Zero: l.Mode != ""},
		}
	case KindMACVLAN:
		return []nlconn.Attr{{Kind: nl.IFLA_MACVLAN_MODE, At: &l.mode}, {Kind: nl.IFLA_MACVLAN_BC_QUEUE_LEN, At: &l.BCQueueLen}}
	case KindIPVLAN:
		return []nlconn.Attr{{Kind: nl.IFLA_IPVLAN_MODE, At: &l.ipvlanMode, Zero: l.Mode != ""}}
	case KindVLAN:
		return []nlconn.Attr{{Kind: nl.IFLA_VLAN_ID, At: &l.VLANID, Zero: true}}
	case KindVRF:
		return []nlconn.Attr{{Kind: nl.IFLA_VRF_TABLE, At: &l.Table}}
	case KindVXLAN:
		local, group := uint16(nl.IFLA_VXLAN_LOCAL), uint16(nl.IFLA_VXLAN_GROUP)
		if x.Local.Is6() {
			local = nl.IFLA_VXLAN_LOCAL6
		}
		return []nlconn.Attr{
			{Kind: nl.IFLA_VXLAN_ID, At: &l.VNI},
			{Kind: nl.IFLA_VXLAN_LINK, At: &l.Peer},
			{Kind: local, At: &x.Local},
			{Kind: group, At: &x.Group},
			{Kind: nl.IFLA_VXLAN_PORT, At: &x.Port},
			{Kind: nl.IFLA_VXLAN_LEARNING, At: &x.Learning, Zero: true},
			{Kind: nl.IFLA_VXLAN_GBP, At: &x.GBP},
		}
	case KindBond:
		return append([]nlconn.Attr{{Kind: nl.IFLA_BOND_MODE, At: &l.bondMode, Zero: true}}, l.Bond.attrs()...)
	case KindTap:
		return []nlconn.Attr{
			{Kind: nl.IFLA_TUN_TYPE, At: &l.Tap.kind},
			{Kind: nl.IFLA_TUN_MULTI_QUEUE, At: &l.Tap.MultiQueue},
			{Kind: nl.IFLA_TUN_OWNER, At: &l.Tap.Owner},
			{Kind: nl.IFLA_TUN_GROUP, At: &l.Tap.Group},
		}
	}
	return nil
}

// AddKind appends IFLA_LINKINFO with the kind and its attributes.
func (l *Link) AddKind(b *nlconn.Body) {
	l.mode, _ = ModeValue(l.Kind, l.Mode)
	l.ipvlanMode, l.bondMode = uint16(l.mode), uint8(l.mode)
	l.Bond.policy, _ = HashPolicyValue(l.Bond.XmitHashPolicy)
	b.Attrs([]nlconn.Attr{{Kind: unix.IFLA_LINKINFO, At: []nlconn.Attr{{Kind: nl.IFLA_INFO_KIND, At: &l.Kind}, {Kind: nl.IFLA_INFO_DATA, At: l.attrs()}}}})
}

// parseKind reads the IFLA_INFO_DATA of a link.
func (l *Link) parseKind(data []byte) error {
	attrs, x := l.attrs(), &l.VXLAN
	if l.Kind == KindVXLAN {
		attrs = append(attrs, []nlconn.Attr{
			{Kind: nl.IFLA_VXLAN_LOCAL6, At: &x.Local},
			{Kind: nl.IFLA_VXLAN_GROUP6, At: &x.Group},
			{Kind: nl.IFLA_VXLAN_FLOWBASED, At: &x.Metadata},
			{Kind: nl.IFLA_VXLAN_PROXY, At: &x.Proxy},
			{Kind: nl.IFLA_VXLAN_RSC, At: &x.Resolve},
			{Kind: nl.IFLA_VXLAN_L2MISS, At: &x.L2Misses},
			{Kind: nl.IFLA_VXLAN_L3MISS, At: &x.L3Misses},
		}...)
	}
	if err := nlconn.ReadAttrs(data, attrs); err != nil {
		return err
	}
	switch l.Kind {
	case KindMACVLAN, KindNetkit:
		l.Mode = modeName(l.Kind, int(l.mode))
	case KindIPVLAN:
		l.Mode = modeName(l.Kind, int(l.ipvlanMode))
	case KindBond:
		l.Mode, l.Bond.XmitHashPolicy = modeName(l.Kind, int(l.bondMode)), hashPolicyName(l.Bond.policy)
	case KindTap:
		l.Tap.IsTap = l.Tap.kind == unix.IFF_TAP
		for _, id := range []**uint32{&l.Tap.Owner, &l.Tap.Group} {
			if *id != nil && **id == noID {
				*id = nil
			}
		}
	}
	return nil
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
	kind         uint8
}
