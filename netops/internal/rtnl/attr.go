package rtnl

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Family returns the address family of a: AF_INET or AF_INET6.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// attrSigned returns the value of a signed 32-bit attribute, or -1 if v is
// shorter.
func attrSigned(v []byte) int {
	if len(v) < 4 {
		return -1
	}
	return int(int32(nlconn.Int(v)))
}

// SetFlag requests that an interface flag is set or cleared. If neither on nor
// off is set, the flag does not change.
func SetFlag(ifi *nl.IfInfomsg, on, off bool, flag uint32) {
	if on || off {
		ifi.Change |= flag
	}
	if on {
		ifi.Flags |= flag
	}
}

// NameAttr returns the attribute for a link's name (IFLA_IFNAME).
func NameAttr(name string) *nl.RtAttr {
	return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))
}

// HardwareAttrs returns the attributes for a MAC and an MTU if they are set. The
// caller has validated the MAC.
func HardwareAttrs(mac string, mtu int) []nl.NetlinkRequestData {
	var attrs []nl.NetlinkRequestData
	if a, err := net.ParseMAC(mac); err == nil {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_ADDRESS, a))
	}
	if mtu != 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	}
	return attrs
}

// OneQueue returns the attributes that request one transmit and one receive
// queue. Without them, each end of a veth pair gets one queue for each possible
// processor, and the kernel then removes all but one (drivers/net/veth.c,
// veth_init_queues). The removal waits for every processor (RCU) while it holds
// the lock that all link changes need.
func OneQueue() []nl.NetlinkRequestData {
	one := nl.Uint32Attr(1)
	return []nl.NetlinkRequestData{nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, one), nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, one)}
}

// BoolAttr returns the one-byte value of a boolean attribute.
func BoolAttr(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}
