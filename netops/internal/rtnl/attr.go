package rtnl

import (
	"encoding/binary"
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

// LinkMessage returns a request for the link with an index. With index 0 the caller
// adds the link's name.
func LinkMessage(kind uint16, index int) nlconn.Message {
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ifi.Index = int32(index)
	return nlconn.Message{Kind: kind, Header: ifi}
}

// AddHardware appends a MAC and an MTU if they are set. The caller has validated
// the MAC.
func AddHardware(b *nlconn.Body, mac string, mtu int) {
	if a, err := net.ParseMAC(mac); err == nil {
		b.Bytes(unix.IFLA_ADDRESS, a)
	}
	if mtu != 0 {
		b.Uint32(unix.IFLA_MTU, uint32(mtu))
	}
}

// AddOneQueue appends the attributes that request one transmit and one receive
// queue. Without them, each end of a veth pair gets one queue for each possible
// processor, and the kernel then removes all but one (drivers/net/veth.c,
// veth_init_queues). The removal waits for every processor (RCU) while it holds
// the lock that all link changes need.
func AddOneQueue(b *nlconn.Body) {
	b.Uint32(unix.IFLA_NUM_TX_QUEUES, 1)
	b.Uint32(unix.IFLA_NUM_RX_QUEUES, 1)
}

// ParseSockaddr reads struct sockaddr_in or sockaddr_in6. The result is invalid for other families.
func ParseSockaddr(b []byte) netip.AddrPort {
	var addr []byte
	switch {
	case len(b) >= unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		addr = b[8:24]
	case len(b) >= unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		addr = b[4:8]
	default:
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
}
