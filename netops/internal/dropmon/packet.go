package dropmon

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/reach"
)

// Drop is a packet that the kernel dropped, and why.
type Drop struct {
	Time time.Time
	// Reason is the kernel's name of the reason, "" before Linux 5.17. Symbol is the place in
	// the kernel: "nf_hook_slow+0xc8".
	Reason, Symbol string
	Size           int
	// SourceMAC and DestinationMAC are "" for a packet without an Ethernet header.
	SourceMAC, DestinationMAC string
	// Proto is "tcp", "udp", "icmp", "arp" and so on. It is the number of an EtherType or IP
	// protocol if that has no name.
	Proto string
	// From and To are invalid for a packet that is not IP. The ports are 0 for a protocol
	// without ports.
	From, To netip.AddrPort
	// Echo is the identifier of an ICMP echo message, and EchoReply reports whether that is a reply.
	Echo      uint16
	EchoReply bool
}

// Cause returns the reason and the place.
func (d *Drop) Cause() string {
	if d.Symbol == "" {
		return d.Reason
	}
	return strings.TrimPrefix(d.Reason+" in "+d.Symbol, " ")
}

// In reports whether the packet is one of a flow to an address, or of its replies. NAT may have changed one of the addresses.
func (d *Drop) In(f nft.Flow, to netip.Addr) (reply, ok bool) {
	switch d.Proto {
	case "tcp", "udp":
		reply, ok = d.To.Port() == f.ID, d.From.Port() == f.ID || d.To.Port() == f.ID
	case "icmp", "icmpv6":
		reply, ok = d.EchoReply, d.Echo == f.ID
	}
	first, second := d.From.Addr(), d.To.Addr()
	if reply {
		first, second = second, first
	}
	return reply, ok && (first == f.From || second == to)
}

const (
	etherHeader = 14
	vlanTag     = 4
	// ipv6Fixed is the size of the IPv6 header without extensions.
	ipv4Least, ipv6Fixed = 20, 40
)

// readHeaders reads the headers of the packet of an EtherType, which begins with its MAC header.
func (d *Drop) readHeaders(protocol uint16, b []byte) {
	// A tunnel or tap device has no Ethernet header: its packets begin with the IP header.
	if isEther(b, protocol) {
		d.DestinationMAC, d.SourceMAC = net.HardwareAddr(b[:6]).String(), net.HardwareAddr(b[6:12]).String()
		tagged := binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_8021Q
		b = b[etherHeader:]
		if tagged && len(b) >= vlanTag {
			b = b[vlanTag:]
		}
	}
	d.readNetwork(protocol, b)
}

// readNetwork reads the headers of the packet of an EtherType, which begins with its network header.
func (d *Drop) readNetwork(protocol uint16, b []byte) {
	d.Proto = etherName(protocol)
	var proto byte
	switch {
	case protocol == unix.ETH_P_IP && len(b) >= ipv4Least && b[0]>>4 == 4:
		proto = b[9]
		d.From, d.To = addrPort(b[12:16]), addrPort(b[16:20])
		size := int(b[0]&0xf) * 4
		if size < ipv4Least || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 { // only the first fragment has ports
			size = len(b)
		}
		b = b[min(size, len(b)):]
	case protocol == unix.ETH_P_IPV6 && len(b) >= ipv6Fixed && b[0]>>4 == 6:
		proto = b[6]
		d.From, d.To = addrPort(b[8:24]), addrPort(b[24:40])
		b = b[ipv6Fixed:]
	default:
		return
	}
	d.Proto = nft.ProtocolName(proto)
	switch proto {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if proto == unix.IPPROTO_ICMPV6 {
			d.Proto = "icmpv6"
		}
		d.Echo, d.EchoReply = reach.EchoID(proto, b)
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(b) >= 4 {
			d.From = netip.AddrPortFrom(d.From.Addr(), binary.BigEndian.Uint16(b))
			d.To = netip.AddrPortFrom(d.To.Addr(), binary.BigEndian.Uint16(b[2:]))
		}
	}
}

// isEther reports whether a packet begins with an Ethernet header.
func isEther(b []byte, protocol uint16) bool {
	if len(b) < etherHeader {
		return false
	}
	kind := binary.BigEndian.Uint16(b[12:])
	return kind == protocol || kind == unix.ETH_P_8021Q
}

// addrPort returns an address without a port.
func addrPort(b []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, 0)
}

// etherName returns the name of an EtherType, or its number.
func etherName(protocol uint16) string {
	switch protocol {
	case unix.ETH_P_IP:
		return "ip"
	case unix.ETH_P_IPV6:
		return "ipv6"
	case unix.ETH_P_ARP:
		return "arp"
	}
	return fmt.Sprintf("0x%04x", protocol)
}
