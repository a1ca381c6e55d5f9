package rtnl

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Family is an address's, AF_INET or AF_INET6.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// attrSigned is a signed 32-bit attribute's value, -1 for one of another length.
func attrSigned(v []byte) int {
	if len(v) < 4 {
		return -1
	}
	return int(int32(nlconn.Int(v)))
}

// SetFlag asks for an interface flag to be on or off.
func SetFlag(ifi *nl.IfInfomsg, on, off bool, flag uint32) {
	if on || off {
		ifi.Change |= flag
	}
	if on {
		ifi.Flags |= flag
	}
}

// NameAttr is a link's name (IFLA_IFNAME).
func NameAttr(name string) *nl.RtAttr {
	return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))
}

// HardwareAttrs are a MAC and an MTU where they are set. The MAC was validated.
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

// OneQueue has the kernel make no more queues than it uses. Without, an end of a
// veth gets one for each processor there could be, and all but one are taken
// away again, which waits for every processor (RCU, drivers/net/veth.c
// veth_init_queues) with the lock held that all changes of links need.
func OneQueue() []nl.NetlinkRequestData {
	one := nl.Uint32Attr(1)
	return []nl.NetlinkRequestData{nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, one), nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, one)}
}

// BoolAttr is a switch of one byte.
func BoolAttr(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}
