package policy_test

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// The bits of TCP's flags.
const (
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// ipPacket returns a packet with a payload of a transport protocol, whose checksum it writes. hops is its time to live.
func ipPacket(from, to netip.Addr, protocol, hops byte, payload []byte) []byte {
	payload = append([]byte{}, payload...)
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = append(binary.BigEndian.AppendUint32(pseudo, uint32(len(payload))), 0, 0, 0, protocol)
	at, ok := map[byte]int{unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2, unix.IPPROTO_UDP: 6, unix.IPPROTO_TCP: 16}[protocol]
	if protocol == unix.IPPROTO_ICMP {
		pseudo = nil
	}
	if ok {
		binary.BigEndian.PutUint16(payload[at:], checksum(append(pseudo, payload...)))
	}
	if from.Is6() {
		b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
		b = append(append(append(b, protocol, hops), from.AsSlice()...), to.AsSlice()...)
		return append(b, payload...)
	}
	b := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
	b = append(append(append(b, 0, 0, 0, 0, hops, protocol, 0, 0), from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sourceRouted returns a packet that goes on to another address from where it was sent to: with a loose source route of IPv4, or a segment routing
// header of IPv6 (RFC 791, section 3.1, and RFC 8754, section 2).
func sourceRouted(packet []byte, to netip.Addr) []byte {
	if to.Is4() {
		options := append([]byte{1, 131, 7, 4}, to.AsSlice()...)
		b := slices.Concat(packet[:20], options, packet[20:])
		b[0] += byte(len(options) / 4)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[10:], 0)
		binary.BigEndian.PutUint16(b[10:], checksum(b[:20+len(options)]))
		return b
	}
	const header, segments, left, kind = 40, 2, 1, 4
	route := slices.Concat([]byte{packet[6], 2 * segments, kind, left, segments - 1, 0, 0, 0}, to.AsSlice(), packet[24:header])
	return withHeader(packet, unix.IPPROTO_ROUTING, route)
}

// withHeader returns a packet of IPv6 with an extension header.
func withHeader(packet []byte, kind byte, extension []byte) []byte {
	const header = 40
	b := slices.Concat(packet[:header], extension, packet[header:])
	b[6] = kind
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-header))
	return b
}

// fragments returns a packet in two fragments. The first one has so many bytes of the payload, a multiple of 8.
func fragments(packet []byte, first int) [][]byte { return overlapping(packet, packet, first, first) }

// overlapping returns a fragment with the first bytes of one packet, and one with those of the other from a place on.
func overlapping(one, other []byte, first, from int) [][]byte {
	if one[0]>>4 == 4 {
		const header, more = 20, 0x2000
		part := func(b []byte, flags int) []byte {
			b = slices.Clone(b)
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			binary.BigEndian.PutUint16(b[4:], 77)
			binary.BigEndian.PutUint16(b[6:], uint16(flags))
			binary.BigEndian.PutUint16(b[10:], 0)
			binary.BigEndian.PutUint16(b[10:], checksum(b[:header]))
			return b
		}
		return [][]byte{part(one[:header+first], more), part(slices.Concat(other[:header], other[header+from:]), from/8)}
	}
	const header, more = 40, 1
	part := func(b []byte, flags int) []byte {
		return withHeader(b, unix.IPPROTO_FRAGMENT, append(binary.BigEndian.AppendUint16([]byte{b[6], 0}, uint16(flags)), 0, 0, 0, 77))
	}
	return [][]byte{part(one[:header+first], more), part(slices.Concat(other[:header], other[header+from:]), from)}
}

// udp returns a packet with a datagram.
func udp(from, to netip.AddrPort, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(binary.BigEndian.AppendUint16(b, uint16(8+len(text))), 0, 0)
	return ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_UDP, 64, append(b, text...))
}

// tcp returns a packet with a segment.
func tcp(from, to netip.AddrPort, flags byte, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 0, 0, 0, 9, 0, 0, 0, 9, 0x50, flags, 255, 255, 0, 0, 0, 0)
	return ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_TCP, 64, append(b, text...))
}

// sctpHeartbeat is a type of chunks. conntrack begins to track an association with it.
const sctpHeartbeat = 4

// sctp returns a packet with a chunk of SCTP.
func sctp(from, to netip.AddrPort, chunk byte, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 0, 0, 0, 9, 0, 0, 0, 0, chunk, 0)
	b = append(binary.BigEndian.AppendUint16(b, uint16(4+len(text))), text...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_SCTP, 64, b)
}

// icmp returns a packet with an ICMP message of either family.
func icmp(from, to netip.Addr, hops, kind byte, body []byte) []byte {
	protocol := byte(unix.IPPROTO_ICMP)
	if from.Is6() {
		protocol = unix.IPPROTO_ICMPV6
	}
	return ipPacket(from, to, protocol, hops, append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, body...))
}

// unreachable returns an ICMP error about a packet.
func unreachable(from, to netip.Addr, packet []byte) []byte {
	kind := byte(3)
	if from.Is6() {
		kind = 1
	}
	return icmp(from, to, 64, kind, packet)
}
