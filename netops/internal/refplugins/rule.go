package refplugins

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// rule is a rule of another program. It has the fields that identify the owner.
// Unknown expressions are ignored; shape names all expressions.
type rule struct {
	nft.HeldRule
	// jump is the chain to which the rule jumps, or "".
	jump string
	// accepts reports whether the rule's verdict is accept.
	accepts bool
	// source and destination are the prefixes that the packet's addresses must be
	// in.
	source, destination netip.Prefix
	// dnat is the destination that iptables' target DNAT sets. lookup is the last set that the
	// rule looks up.
	dnat   netip.AddrPort
	lookup string
	// data has the addresses among the rule's constants, for example the target
	// of a dnat.
	data []netip.Addr
	// proto is the protocol of the packet (IPPROTO_*), 0 for any. ports are its
	// destination ports.
	proto byte
	ports []portRange
	// shape names the rule's expressions except counters. An iptables match has
	// the name of the match instead of "match".
	shape []string

	// load is the packet's field that the next comparison reads. mask has its
	// compared bits.
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

// portRange is a range of ports, both ends included.
type portRange struct{ first, last uint16 }

// target returns the container's address in a rule of portmap: the target of a
// dnat, or the destination of the traffic that is masqueraded.
func (r *rule) target() netip.Addr {
	if len(r.data) > 0 {
		return r.data[0]
	}
	return r.destination.Addr()
}

// forwards reports whether the rule is exactly one of the two rules that the
// firewall plugin makes for an address.
func (r *rule) forwards(a netip.Addr) bool {
	if !r.accepts || r.Comment != "" {
		return false
	}
	only := netip.PrefixFrom(a, a.BitLen())
	switch strings.Join(r.shape, " ") {
	case "payload cmp immediate":
		return r.source == only
	case "payload cmp conntrack immediate", "payload cmp ct bitwise cmp immediate":
		return r.destination == only
	}
	return false
}

// readRules reads the rules of some chains of a table, or of all chains if none
// is named. An absent table or chain has no rules.
func readRules(ctx context.Context, c *nft.Client, t nft.Table, chains ...string) ([]rule, error) {
	if len(chains) == 0 {
		chains = []string{""}
	}
	var all []rule
	for _, chain := range chains {
		rules, err := nft.Rules(ctx, c, t, chain, interpret)
		if err != nil {
			return nil, err
		}
		all = append(all, rules...)
	}
	return all, nil
}

// interpret reads the expressions of a rule.
func interpret(held nft.HeldRule) (rule, error) {
	r := rule{HeldRule: held, accepts: held.Verdict == "accept"}
	r.jump = jumpOf(held.Verdict)
	r.Expressions = nil
	for _, e := range held.Expressions {
		var err error
		switch e.Name {
		case "meta":
			r.meta(&e)
		case "payload":
			r.payload(&e)
		case "bitwise":
			r.mask, err = nft.DecodeData(e.Attr(unix.NFTA_BITWISE_MASK))
		case "cmp":
			err = r.compare(&e)
		case "immediate":
			err = r.immediate(&e)
		case "target":
			if nlconn.Text(e.Attr(iptables.TargetName)) == "DNAT" {
				r.dnat = destination(e.Attr(unix.NFTA_TARGET_INFO), r.Table.Family)
			}
		case "lookup":
			r.lookup = nlconn.Text(e.Attr(unix.NFTA_LOOKUP_SET))
		case "tcp", "udp", "sctp", "multiport":
			r.ports = append(r.ports, matchedPorts(e.Name, e.Attr(unix.NFTA_MATCH_INFO))...)
		}
		if err != nil {
			return r, err
		}
		r.shape = append(r.shape, e.Name)
	}
	return r, nil
}

// jumpOf returns the chain to which a verdict jumps, or "".
func jumpOf(verdict string) string {
	if word, chain, _ := strings.Cut(verdict, " "); word == "jump" || word == "goto" {
		return chain
	}
	return ""
}

// payload records the field that the next comparison reads.
func (r *rule) payload(e *nft.Expression) {
	base, ok := e.Number(unix.NFTA_PAYLOAD_BASE)
	offset, hasOffset := e.Number(unix.NFTA_PAYLOAD_OFFSET)
	length, hasLength := e.Number(unix.NFTA_PAYLOAD_LEN)
	r.load, r.mask = payload{base, offset, length, ok && hasOffset && hasLength}, nil
}

// meta records whether the next comparison reads the transport protocol.
func (r *rule) meta(e *nft.Expression) {
	key, ok := e.Number(unix.NFTA_META_KEY)
	r.load, r.mask = payload{base: baseProto, length: 1, ok: ok && key == unix.NFT_META_L4PROTO}, nil
}

// compare records a condition on the packet's address, protocol or port. For a
// prefix, iptables compares only whole bytes, or masks the address.
func (r *rule) compare(e *nft.Expression) error {
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
		r.proto = value[0]
		return nil
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		if load.offset == 2 && load.length == 2 && mask == nil {
			port := binary.BigEndian.Uint16(value)
			r.ports = append(r.ports, portRange{port, port})
		}
		return nil
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		r.compareHeader(load, value, bits)
	}
	return nil
}

// compareHeader records a condition on a field of the network header.
func (r *rule) compareHeader(load payload, value []byte, bits int) {
	// The offsets of the addresses: RFC 791 section 3.1, RFC 8200 section 3.
	ip4 := r.Table.Family != unix.NFPROTO_IPV6 && load.length <= 4
	ip6 := r.Table.Family != unix.NFPROTO_IPV4 && load.length <= 16
	switch {
	case ip4 && load.offset == 12:
		r.source = prefixOf(value, 4, bits)
	case ip4 && load.offset == 16:
		r.destination = prefixOf(value, 4, bits)
	case ip6 && load.offset == 8:
		r.source = prefixOf(value, 16, bits)
	case ip6 && load.offset == 24:
		r.destination = prefixOf(value, 16, bits)
	case load.length == 1 && (ip4 && load.offset == 9 || ip6 && load.offset == 6):
		r.proto = value[0]
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
func (r *rule) immediate(e *nft.Expression) error {
	if register, ok := e.Number(unix.NFTA_IMMEDIATE_DREG); ok && register == unix.NFT_REG_VERDICT {
		return nil
	}
	value, err := nft.DecodeData(e.Attr(unix.NFTA_IMMEDIATE_DATA))
	if a, ok := netip.AddrFromSlice(value); ok {
		r.data = append(r.data, a)
	}
	return err
}
