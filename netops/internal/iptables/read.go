package iptables

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HeldRule is an existing rule of iptables or of another program in nftables. Conditions that this package does
// not know are left out: Shape and Text have them.
type HeldRule struct {
	Comment string
	// Target is a verdict in capital letters, a target of iptables, or a chain. Jump is that chain, or "".
	Target, Jump string
	// Source and Destination are the prefixes that the packet's addresses must be in. Proto is its protocol
	// (IPPROTO_*), 0 for any, and Ports are its destination ports.
	Source, Destination netip.Prefix
	Proto               byte
	Ports               []PortRange
	// DNAT is the destination that iptables' target DNAT sets. It is not read from iptables-legacy.
	DNAT netip.AddrPort
	// Lookup is the last set that the rule looks up. Constants has the addresses among the rule's constants, for
	// example the target of a dnat. Shape names the rule's expressions except counters; an iptables match
	// has the name of the match instead of "match". Only rules of nftables have them.
	Lookup    string
	Constants []netip.Addr
	Shape     []string
	// Text is the rule as iptables-legacy lists it, without its chain.
	Text string
	// matchesAll reports whether the rule has no condition.
	matchesAll bool
	// handle identifies the rule in nftables. In iptables-legacy, Text does, and handle is its number.
	handle uint64
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// ruleReader reads the expressions of a rule.
type ruleReader struct {
	*HeldRule
	family byte
	// load is the packet's field that the next comparison reads. mask has its compared bits.
	load payload
	mask []byte
}

// payload is a field of one of the packet's headers. With the base baseProto it
// is the transport protocol.
type payload struct {
	base, offset, length uint32
	ok                   bool
}

// baseProto is the base of a payload that is not in a header: the packet's transport protocol.
const baseProto = ^uint32(0)

// ReadRule reads a rule of nftables.
func ReadRule(held nft.HeldRule) (*HeldRule, error) {
	chain := nft.JumpTarget(held.Verdict)
	r := ruleReader{family: held.Table.Family, HeldRule: &HeldRule{
		Comment: held.Comment, Target: cmp.Or(chain, strings.ToUpper(held.Verdict)), Jump: chain, matchesAll: true, handle: held.Handle,
	}}
	for i := range held.Expressions {
		e := &held.Expressions[i]
		if err := r.read(e); err != nil {
			return nil, err
		}
		r.Shape = append(r.Shape, e.Name)
		r.matchesAll = r.matchesAll && slices.Contains([]string{"immediate", "comment", "target", "reject"}, e.Name)
	}
	return r.HeldRule, nil
}

func (r *ruleReader) read(e *nft.Expression) (err error) {
	switch e.Name {
	case "meta":
		key, ok := e.Number(unix.NFTA_META_KEY)
		r.load, r.mask = payload{base: baseProto, length: 1, ok: ok && key == unix.NFT_META_L4PROTO}, nil
	case "payload":
		base, ok := e.Number(unix.NFTA_PAYLOAD_BASE)
		offset, hasOffset := e.Number(unix.NFTA_PAYLOAD_OFFSET)
		length, hasLength := e.Number(unix.NFTA_PAYLOAD_LEN)
		r.load, r.mask = payload{base, offset, length, ok && hasOffset && hasLength}, nil
	case "bitwise":
		r.mask, err = nft.DecodeData(e.Attr(unix.NFTA_BITWISE_MASK))
	case "cmp":
		err = r.compare(e)
	case "immediate":
		err = r.immediate(e)
	case "reject":
		r.Target = "REJECT"
	case "target":
		r.Target = nlconn.Text(e.Attr(TargetName))
		if r.Target == "DNAT" {
			r.DNAT = destination(e.Attr(unix.NFTA_TARGET_INFO), r.family)
		}
	case "lookup":
		r.Lookup = nlconn.Text(e.Attr(unix.NFTA_LOOKUP_SET))
	case "tcp", "udp", "sctp", "multiport":
		r.Ports = append(r.Ports, matchedPorts(e.Name, e.Attr(unix.NFTA_MATCH_INFO))...)
	}
	return err
}

// compare records a condition on the packet's address, protocol or port. For a
// prefix, iptables compares only whole bytes, or masks the address.
func (r *ruleReader) compare(e *nft.Expression) error {
	load, mask := r.load, r.mask
	r.load, r.mask = payload{}, nil
	value, err := nft.DecodeData(e.Attr(unix.NFTA_CMP_DATA))
	op, ok := e.Number(unix.NFTA_CMP_OP)
	if err != nil || !load.ok || !ok || op != unix.NFT_CMP_EQ {
		return err
	}
	if uint32(len(value)) != load.length {
		return nil
	}
	bits := 8 * len(value)
	if mask != nil {
		ones, width := net.IPMask(mask).Size()
		if width != bits {
			return nil
		}
		bits = ones
	}
	switch load.base {
	case baseProto:
		r.Proto = value[0]
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		if load.offset == 2 && load.length == 2 && mask == nil {
			port := binary.BigEndian.Uint16(value)
			r.Ports = append(r.Ports, PortRange{port, port})
		}
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		r.compareHeader(load, value, bits)
	}
	return nil
}

// compareHeader records a condition on a field of the network header.
func (r *ruleReader) compareHeader(load payload, value []byte, bits int) {
	// The offsets of the addresses: RFC 791 section 3.1, RFC 8200 section 3.
	ip4 := r.family != unix.NFPROTO_IPV6 && load.length <= 4
	ip6 := r.family != unix.NFPROTO_IPV4 && load.length <= 16
	switch {
	case ip4 && load.offset == 12:
		r.Source = prefixOf(value, 4, bits)
	case ip4 && load.offset == 16:
		r.Destination = prefixOf(value, 4, bits)
	case ip6 && load.offset == 8:
		r.Source = prefixOf(value, 16, bits)
	case ip6 && load.offset == 24:
		r.Destination = prefixOf(value, 16, bits)
	case load.length == 1 && (ip4 && load.offset == 9 || ip6 && load.offset == 6):
		r.Proto = value[0]
	}
}

// prefixOf returns the prefix that begins with value, of an address of size
// bytes.
func prefixOf(value []byte, size, bits int) netip.Prefix {
	whole := make([]byte, size)
	copy(whole, value)
	a, _ := netip.AddrFromSlice(whole)
	return netip.PrefixFrom(a, bits)
}

// immediate records a constant that may be an address.
func (r *ruleReader) immediate(e *nft.Expression) error {
	if register, ok := e.Number(unix.NFTA_IMMEDIATE_DREG); ok && register == unix.NFT_REG_VERDICT {
		return nil
	}
	value, err := nft.DecodeData(e.Attr(unix.NFTA_IMMEDIATE_DATA))
	if a, ok := netip.AddrFromSlice(value); ok {
		r.Constants = append(r.Constants, a)
	}
	return err
}

const (
	// multiportSize is the size of struct xt_multiport_v1: flags, count, 15
	// ports, 15 flags for the first port of a range, invert.
	multiportSize = 48
	multiportMax  = 15
	// multiportSource is the value of flags for source ports only.
	multiportSource = 0
	// destinationPorts is the offset of the destination port range in struct
	// xt_tcp and struct xt_udp. In struct xt_sctp_info the offset is 0.
	destinationPorts = 4
)

// matchedPorts returns the destination ports that an iptables match accepts.
func matchedPorts(name string, info []byte) []PortRange {
	at := func(offset int) uint16 { return binary.NativeEndian.Uint16(info[offset:]) }
	offset := destinationPorts
	switch name {
	case "sctp":
		offset = 0
	case "tcp", "udp":
	case "multiport":
		ports, direction, inverted := Multiport(info)
		if direction == multiportSource || inverted {
			return nil
		}
		return ports
	default:
		return nil
	}
	if len(info) < offset+4 {
		return nil
	}
	return []PortRange{{at(offset), at(offset + 2)}}
}

// Multiport returns the ports of the match multiport, and whether they are those of the source, of the destination, or of
// either (enum xt_multiport_flags), and whether the match is inverted. Truncated data has no ports.
func Multiport(info []byte) (ports []PortRange, direction byte, inverted bool) {
	if len(info) < multiportSize {
		return nil, 0, false
	}
	at := func(i int) uint16 { return binary.NativeEndian.Uint16(info[2+2*i:]) }
	count := min(int(info[1]), multiportMax)
	for i := 0; i < count; i++ {
		r := PortRange{at(i), at(i)}
		if info[2+2*multiportMax+i] != 0 && i+1 < count {
			i++
			r.Last = at(i)
		}
		ports = append(ports, r)
	}
	return ports, info[0], info[multiportSize-1] != 0
}

// destination reads the data of iptables' target DNAT: struct nf_nat_range or nf_nat_range2, or
// before iptables 1.8.8 for IPv4 struct nf_nat_ipv4_multi_range_compat of
// linux/netfilter/nf_nat.h.
func destination(info []byte, family byte) netip.AddrPort {
	at, size, port := 4, 4, 36
	switch {
	case family == unix.NFPROTO_IPV6:
		size = 16
	case len(info) < 36:
		at, port = 8, 16
	}
	if len(info) < port+2 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(info[at : at+size])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(info[port:]))
}
