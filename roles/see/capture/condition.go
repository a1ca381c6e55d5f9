package capture

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Offsets in an Ethernet packet without VLAN tag.
const (
	etherType = 12
	network   = 14

	ipFragment, ipProtocol, ipSource, ipDestination = network + 6, network + 9, network + 12, network + 16
	arpSource, arpDestination                       = network + 14, network + 24

	ip6Next, ip6Source, ip6Destination = network + 6, network + 8, network + 24
	ip6Payload                         = network + 40
)

const (
	etherRARP      = 0x8035
	fragmentOffset = 0x1fff
	maxVLAN        = 0xfff
)

// Offsets of the tag that the kernel has removed from a packet: SKF_AD_VLAN_TAG_PRESENT and
// SKF_AD_VLAN_TAG of linux/filter.h, from SKF_AD_OFF.
const (
	tagPresent = 0xfffff000 + 48
	removedTag = 0xfffff000 + 44
)

// condition is a test of a packet, or a combination of conditions.
type condition struct {
	// op is "and", "or", "not" (one condition), or "" for a test.
	op string
	of []*condition
	// A test loads 1, 2 or 4 bytes (BPF_B, BPF_H, BPF_W) at an offset, to which behind4 adds the size of the IPv4
	// header. It compares the bits of mask with value: BPF_JEQ, BPF_JGE, BPF_JGT or BPF_JSET.
	size, jump          uint16
	behind4             bool
	offset, mask, value uint32
}

func not(c *condition) *condition         { return &condition{op: "not", of: []*condition{c}} }
func all(each ...*condition) *condition   { return &condition{op: "and", of: each} }
func oneOf(each ...*condition) *condition { return &condition{op: "or", of: each} }

// equals compares the bytes at an offset.
func equals(size uint16, offset, value uint32) *condition {
	return &condition{size: size, offset: offset, jump: unix.BPF_JEQ, mask: ^uint32(0), value: value}
}

func isEther(kind uint32) *condition { return equals(unix.BPF_H, etherType, kind) }

// portProtocols are the protocols with ports.
func portProtocols() []string { return []string{"tcp", "udp", "sctp"} }

// protocolNumber returns the number of an IP protocol, or 0.
func protocolNumber(name string) uint32 {
	return map[string]uint32{
		"icmp": unix.IPPROTO_ICMP, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP, "icmp6": unix.IPPROTO_ICMPV6,
	}[name]
}

// isProtocol returns the condition of a protocol's name alone.
func isProtocol(name string) *condition {
	switch name {
	case "ip":
		return isEther(unix.ETH_P_IP)
	case "ip6":
		return isEther(unix.ETH_P_IPV6)
	case "arp":
		return isEther(unix.ETH_P_ARP)
	case "rarp":
		return isEther(etherRARP)
	}
	number := protocolNumber(name)
	in4 := all(isEther(unix.ETH_P_IP), equals(unix.BPF_B, ipProtocol, number))
	// Of the extension headers only that of fragments is skipped, as pcap-filter does.
	in6 := all(isEther(unix.ETH_P_IPV6), oneOf(
		equals(unix.BPF_B, ip6Next, number),
		all(equals(unix.BPF_B, ip6Next, unix.IPPROTO_FRAGMENT), equals(unix.BPF_B, ip6Payload, number)),
	))
	switch name {
	case "icmp":
		return in4
	case "icmp6":
		return in6
	}
	return oneOf(in4, in6)
}

// either combines the conditions for the source and for the destination.
func (q *qualifiers) either(source, destination *condition) *condition {
	switch q.direction {
	case "src":
		return source
	case "dst":
		return destination
	case bothDirections:
		return all(source, destination)
	}
	return oneOf(source, destination)
}

// addresses returns the condition for addresses of a prefix: in IP, and for IPv4 also in ARP and RARP.
func (q *qualifiers) addresses(p netip.Prefix) (*condition, error) {
	var each []*condition
	for _, place := range []struct {
		proto               string
		ether               uint32
		source, destination uint32
	}{
		{"ip", unix.ETH_P_IP, ipSource, ipDestination},
		{"arp", unix.ETH_P_ARP, arpSource, arpDestination},
		{"rarp", etherRARP, arpSource, arpDestination},
		{"ip6", unix.ETH_P_IPV6, ip6Source, ip6Destination},
	} {
		if (q.proto == "" || q.proto == place.proto) && p.Addr().Is6() == (place.proto == "ip6") {
			each = append(each, all(isEther(place.ether), q.either(hasPrefix(place.source, p), hasPrefix(place.destination, p))))
		}
	}
	if len(each) == 0 {
		return nil, fmt.Errorf("%s has no address %s", q.proto, p)
	}
	return oneOf(each...), nil
}

// hasMAC returns the condition for an Ethernet address.
func (q *qualifiers) hasMAC(mac net.HardwareAddr) *condition {
	at := func(offset uint32) *condition {
		return all(equals(unix.BPF_W, offset, binary.BigEndian.Uint32(mac)), equals(unix.BPF_H, offset+4, uint32(binary.BigEndian.Uint16(mac[4:]))))
	}
	return q.either(at(6), at(0))
}

// isTagged returns the condition for a VLAN tag with an ID, or with any for a negative one. The kernel has removed
// the tag, or it is in the packet, for example where a program has sent it.
func isTagged(id int) *condition {
	removed := equals(unix.BPF_W, tagPresent, 1)
	within := oneOf(isEther(unix.ETH_P_8021Q), isEther(unix.ETH_P_8021AD), isEther(unix.ETH_P_QINQ1))
	if id >= 0 {
		tag, inner := equals(unix.BPF_W, removedTag, uint32(id)), equals(unix.BPF_H, network, uint32(id))
		tag.mask, inner.mask = maxVLAN, maxVLAN
		removed, within = all(removed, tag), all(within, inner)
	}
	return oneOf(removed, within)
}

// hasPrefix compares the address at an offset with a prefix, in words of 32 bits.
func hasPrefix(offset uint32, p netip.Prefix) *condition {
	var each []*condition
	address := p.Addr().AsSlice()
	for bits := p.Bits(); len(each) == 0 || bits > 0; bits -= 32 {
		at := uint32(len(each)) * 4
		c := equals(unix.BPF_W, offset+at, binary.BigEndian.Uint32(address[at:]))
		if bits < 32 {
			c.mask <<= 32 - bits
		}
		each = append(each, c)
	}
	return all(each...)
}

// ports returns the condition for ports. Fragments after the first have none.
func (q *qualifiers) ports(low, high uint32) *condition {
	names := portProtocols()
	if q.proto != "" {
		names = []string{q.proto}
	}
	port := func(offset uint32, is4 bool) *condition {
		from := equals(unix.BPF_H, offset, low)
		from.jump, from.behind4 = unix.BPF_JGE, is4
		beyond := *from
		beyond.jump, beyond.value = unix.BPF_JGT, high
		return all(from, not(&beyond))
	}
	var families []*condition
	for _, f := range []struct{ ether, proto, payload uint32 }{{unix.ETH_P_IP, ipProtocol, network}, {unix.ETH_P_IPV6, ip6Next, ip6Payload}} {
		var protocols []*condition
		for _, name := range names {
			protocols = append(protocols, equals(unix.BPF_B, f.proto, protocolNumber(name)))
		}
		is4 := f.ether == unix.ETH_P_IP
		each := []*condition{isEther(f.ether), oneOf(protocols...), q.either(port(f.payload, is4), port(f.payload+2, is4))}
		if is4 {
			isLater := equals(unix.BPF_H, ipFragment, fragmentOffset)
			isLater.jump = unix.BPF_JSET
			each = append(each, not(isLater))
		}
		families = append(families, all(each...))
	}
	return oneOf(families...)
}

// assemble returns the program of a condition. A conditional jump reaches 255 instructions only, so it skips or
// reaches an unconditional one, whose distance is not limited.
func assemble(c *condition, snaplen uint32) []unix.SockFilter {
	var a assembler
	match, fail := &label{}, &label{}
	a.emit(c, match, fail, match)
	a.place(match)
	a.program = append(a.program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: snaplen})
	a.place(fail)
	return append(a.program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
}

// assembler collects a program.
type assembler struct{ program []unix.SockFilter }

// label is a place in the program, which the jumps at some indices lead to.
type label struct{ jumps []int }

// place puts a label at the end of the program.
func (a *assembler) place(l *label) {
	for _, i := range l.jumps {
		a.program[i].K = uint32(len(a.program) - i - 1)
	}
}

// emit appends the code of a condition, which continues at yes or no. next is the label that is placed behind the code.
func (a *assembler) emit(c *condition, yes, no, next *label) {
	switch c.op {
	case "not":
		a.emit(c.of[0], no, yes, next)
	case "and", "or":
		last := len(c.of) - 1
		for _, one := range c.of[:last] {
			following := &label{}
			if c.op == "and" {
				a.emit(one, following, no, following)
			} else {
				a.emit(one, yes, following, following)
			}
			a.place(following)
		}
		a.emit(c.of[last], yes, no, next)
	default:
		a.test(c)
		jump := &a.program[len(a.program)-1]
		target := no
		if next == no {
			target = yes
			jump.Jf = 1
		} else {
			jump.Jt = 1
		}
		target.jumps = append(target.jumps, len(a.program))
		a.program = append(a.program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA})
	}
}

// test appends the instructions of a test. The targets of the last one, a jump, are missing.
func (a *assembler) test(c *condition) {
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_ABS | c.size, K: c.offset}
	if c.behind4 {
		a.program = append(a.program, unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: network})
		load.Code = unix.BPF_LD | unix.BPF_IND | c.size
	}
	a.program = append(a.program, load)
	if c.mask != ^uint32(0) {
		a.program = append(a.program, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: c.mask})
	}
	a.program = append(a.program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | c.jump, K: c.value})
}
