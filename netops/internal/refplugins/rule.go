package refplugins

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// rule is a rule of another program. It has the fields that identify the owner.
// Unknown expressions are ignored; shape names all expressions.
type rule struct {
	table  nft.Table
	chain  string
	handle uint64
	// comment is nft's comment, or the comment of iptables' match "comment".
	comment string
	// jump is the chain to which the rule jumps, or "".
	jump string
	// accepts reports whether the rule's verdict is accept.
	accepts bool
	// source and destination are the prefixes that the packet's addresses must be
	// in.
	source, destination netip.Prefix
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

// baseProto is the base of a payload that is the packet's transport protocol.
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
	if !r.accepts || r.comment != "" {
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

// deletion returns the request that deletes the rule.
func (r *rule) deletion() (nlconn.Message, error) {
	return nft.NewMessage(unix.NFT_MSG_DELRULE, 0, r.table.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_RULE_TABLE, r.table.Name)
		ae.String(unix.NFTA_RULE_CHAIN, r.chain)
		ae.Uint64(unix.NFTA_RULE_HANDLE, r.handle)
		return nil
	})
}

// readRules reads the rules of some chains of a table, or of all chains if none
// is named. An absent table or chain has no rules.
func readRules(ctx context.Context, c *nft.Client, t nft.Table, chains ...string) ([]rule, error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	if len(chains) == 0 {
		return rulesOf(ctx, conn, t, "")
	}
	var all []rule
	for _, chain := range chains {
		rules, err := rulesOf(ctx, conn, t, chain)
		if err != nil {
			return nil, err
		}
		all = append(all, rules...)
	}
	return all, nil
}

// rulesOf reads the rules of one chain, or of the whole table for "".
func rulesOf(ctx context.Context, c *nft.Conn, t nft.Table, chain string) ([]rule, error) {
	m, err := nft.NewMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_RULE_TABLE, t.Name)
		if chain != "" {
			ae.String(unix.NFTA_RULE_CHAIN, chain)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var rules []rule
	var damaged error
	err = c.List(ctx, m, func() { rules, damaged = nil, nil }, func(attrs []byte) {
		r, err := decodeRule(t, attrs)
		rules, damaged = append(rules, r), errors.Join(damaged, err)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return rules, damaged
}

// decodeRule reads the attributes of one NFT_MSG_NEWRULE.
func decodeRule(t nft.Table, attrs []byte) (rule, error) {
	r := rule{table: t}
	err := nft.EachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = nlconn.UntilNUL(ad.Bytes())
		case unix.NFTA_RULE_HANDLE:
			if b := ad.Bytes(); len(b) == 8 {
				r.handle = binary.BigEndian.Uint64(b)
			}
		case unix.NFTA_RULE_USERDATA:
			r.comment = nft.LabelOf(ad.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			return nft.EachAttr(ad.Bytes(), func(ad *netlink.AttributeDecoder) error { return r.expression(ad.Bytes()) })
		}
		return nil
	})
	return r, err
}

// expression reads one NFTA_LIST_ELEM of a rule's expressions.
func (r *rule) expression(attrs []byte) error {
	var name string
	data := map[uint16][]byte{}
	err := nft.EachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = nlconn.UntilNUL(ad.Bytes())
		case unix.NFTA_EXPR_DATA:
			return nft.EachAttr(ad.Bytes(), func(ad *netlink.AttributeDecoder) error {
				data[ad.Type()] = bytes.Clone(ad.Bytes())
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch name {
	case "counter":
		return nil
	case "match":
		name = r.match(data)
	case "meta":
		r.meta(data)
	case "payload":
		r.payload(data)
	case "bitwise":
		r.mask, err = nft.DecodeData(data[unix.NFTA_BITWISE_MASK])
	case "cmp":
		err = r.compare(data)
	case "immediate":
		err = r.immediate(data)
	}
	r.shape = append(r.shape, name)
	return err
}

// match reads an iptables match and returns its name.
func (r *rule) match(data map[uint16][]byte) string {
	name := nlconn.UntilNUL(data[unix.NFTA_MATCH_NAME])
	info := data[unix.NFTA_MATCH_INFO]
	if name == "comment" {
		r.comment = nlconn.UntilNUL(info)
	} else {
		r.ports = append(r.ports, matchedPorts(name, info)...)
	}
	return name
}

// payload records the field that the next comparison reads.
func (r *rule) payload(data map[uint16][]byte) {
	r.load, r.mask = payload{}, nil
	var v [3]uint32
	for i, key := range []uint16{unix.NFTA_PAYLOAD_BASE, unix.NFTA_PAYLOAD_OFFSET, unix.NFTA_PAYLOAD_LEN} {
		if len(data[key]) != 4 {
			return
		}
		v[i] = binary.BigEndian.Uint32(data[key])
	}
	r.load = payload{base: v[0], offset: v[1], length: v[2], ok: true}
}

// meta records whether the next comparison reads the transport protocol.
func (r *rule) meta(data map[uint16][]byte) {
	r.load, r.mask = payload{}, nil
	if key := data[unix.NFTA_META_KEY]; len(key) == 4 && binary.BigEndian.Uint32(key) == unix.NFT_META_L4PROTO {
		r.load = payload{base: baseProto, length: 1, ok: true}
	}
}

// compare records a condition on the packet's address, protocol or port. For a
// prefix, iptables compares only whole bytes, or masks the address.
func (r *rule) compare(data map[uint16][]byte) error {
	load, mask := r.load, r.mask
	r.load, r.mask = payload{}, nil
	value, err := nft.DecodeData(data[unix.NFTA_CMP_DATA])
	op := data[unix.NFTA_CMP_OP]
	if err != nil || !load.ok || len(op) != 4 || binary.BigEndian.Uint32(op) != unix.NFT_CMP_EQ || uint32(len(value)) != load.length {
		return err
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
	ip4 := r.table.Family != unix.NFPROTO_IPV6 && load.length <= 4
	ip6 := r.table.Family != unix.NFPROTO_IPV4 && load.length <= 16
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

// immediate records a verdict, or a constant that may be an address.
func (r *rule) immediate(data map[uint16][]byte) error {
	value, err := nft.DecodeData(data[unix.NFTA_IMMEDIATE_DATA])
	if err != nil || len(value) < 4 {
		return err
	}
	if register := data[unix.NFTA_IMMEDIATE_DREG]; len(register) == 4 && binary.BigEndian.Uint32(register) == unix.NFT_REG_VERDICT {
		switch int32(binary.BigEndian.Uint32(value)) {
		case unix.NFT_JUMP, unix.NFT_GOTO:
			r.jump = string(value[4:])
		case nft.VerdictAccept:
			r.accepts = true
		}
		return nil
	}
	if a, ok := netip.AddrFromSlice(value); ok {
		r.data = append(r.data, a)
	}
	return nil
}
