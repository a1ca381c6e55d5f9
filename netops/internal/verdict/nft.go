package verdict

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// rules reads a chain.
func (f *Filter) rules(ctx context.Context, id chainID) []rule {
	if all, known := f.chains[id]; known {
		return all
	}
	all, err := nft.Rules(ctx, f.nft, id.table, id.name, func(h nft.HeldRule) (rule, error) {
		r := &nftRule{HeldRule: h, filter: f, ctx: ctx}
		r.Expressions = slices.Clone(h.Expressions)
		for i, e := range r.Expressions {
			r.Expressions[i] = e.Clone()
		}
		return r, nil
	})
	f.err = errors.Join(f.err, err)
	f.chains[id] = all
	return all
}

// nftRule is a rule of nftables.
type nftRule struct {
	nft.HeldRule
	filter *Filter
	ctx    context.Context // that of the call of Drops; sets are read when a rule looks them up
}

func (r *nftRule) drop() Drop {
	d := Drop{Chain: fmt.Sprintf("%s %s", r.Table, nlconn.Printable(r.Chain))}
	where := fmt.Sprintf("%s handle %d", d.Chain, r.Handle)
	d.Rule, d.Before = where+": drop", "nft insert rule "+where
	d.IsAlways = !slices.ContainsFunc(r.Expressions, func(e nft.Expression) bool {
		return !slices.Contains([]string{"immediate", "reject", "target", "log", "comment"}, e.Name)
	})
	if r.Comment != "" {
		d.Rule += " (" + nlconn.Printable(r.Comment) + ")"
	}
	return d
}

// value has the known bits of a field.
type value struct{ bits, known []byte }

func known(b []byte) value { return value{b, bytes.Repeat([]byte{0xff}, len(b))} }

// at returns length bytes from an offset. Bytes outside of the field are not known.
func (v value) at(offset, length int) value {
	out := value{make([]byte, length), make([]byte, length)}
	if offset < len(v.bits) {
		copy(out.bits, v.bits[offset:])
		copy(out.known, v.known[offset:])
	}
	return out
}

func (v value) isKnown() bool { return bytes.Count(v.known, []byte{0xff}) == len(v.known) }

// equals compares the first bytes with data.
func (v value) equals(data []byte) truth {
	matches := yes
	for i, b := range data {
		if (v.bits[i]^b)&v.known[i] != 0 {
			return no
		}
		if v.known[i] != 0xff {
			matches = maybe
		}
	}
	return matches
}

// registers are nftables' registers while a rule is evaluated.
type registers struct{ value }

// A register has 16 bytes, or 4 of them with a number from NFT_REG32_00. Longer keys take several.
const registerBytes = 64

func newRegisters() registers {
	return registers{value{make([]byte, registerBytes), make([]byte, registerBytes)}}
}

// offset returns where a register begins.
func offset(register uint32) int {
	at := (int(register) - unix.NFT_REG_1) * 16
	if register >= unix.NFT_REG32_00 {
		at = (int(register) - unix.NFT_REG32_00) * 4
	}
	return min(max(at, 0), registerBytes)
}

// set writes a value, and zeros to the end of its last 4 bytes. Of an invalid value nothing is known.
func (g registers) set(register uint32, v value) {
	at := offset(register)
	if v.bits == nil {
		clear(g.known[at:min(at+16, registerBytes)])
		return
	}
	padded := (len(v.bits) + 3) &^ 3
	zeros := make([]byte, padded-len(v.bits))
	copy(g.bits[at:], append(bytes.Clone(v.bits), zeros...))
	copy(g.known[at:], append(bytes.Clone(v.known), bytes.Repeat([]byte{0xff}, len(zeros))...))
}

func (g registers) get(register uint32, length int) value { return g.at(offset(register), length) }

// ctNotrack is XT_CT_NOTRACK, a flag in the first two bytes of struct xt_ct_target_info.
const ctNotrack = 1

// The offsets of fields in the headers of Ethernet, ARP, IPv4, IPv6 and TCP.
const (
	offsetEtherType = 12
	offsetSender    = 14
	offsetTarget    = 24
	offsetFragment  = 6
	offsetTTL       = 8
	offsetHopLimit  = 7
	offsetFlags     = 13
)

// The flags of TCP. The other two are about congestion.
const (
	flagSYN  = 1 << 1
	flagACK  = 1 << 4
	allFlags = 0x3f
)

// tcpFlags returns the flags of a connection's first packet and of the first answer.
func (p *Packet) tcpFlags() (flags byte, ok bool) {
	if p.State == Established {
		return flagSYN | flagACK, p.Protocol == unix.IPPROTO_TCP
	}
	return flagSYN, p.Protocol == unix.IPPROTO_TCP && p.State == New
}

func (r *nftRule) effect() effect {
	for i := range r.Expressions {
		e := &r.Expressions[i]
		name, info := nlconn.Text(e.Attr(iptables.TargetName)), e.Attr(unix.NFTA_TARGET_INFO)
		at, _ := e.Number(unix.NFTA_PAYLOAD_OFFSET)
		base, _ := e.Number(unix.NFTA_PAYLOAD_BASE)
		ctKey, _ := e.Number(unix.NFTA_CT_KEY)
		switch {
		case e.Name == "notrack", e.Name == "target" && (name == "NOTRACK" || name == "CT" && len(info) > 0 && info[0]&ctNotrack != 0):
			return untracks
		case e.Name == "ct" && e.Attr(unix.NFTA_CT_SREG) != nil && ctKey == unix.NFT_CT_ZONE:
			return zones
		case e.Name == "target" && (name == "TTL" || name == "HL"),
			e.Name == "payload" && e.Attr(unix.NFTA_PAYLOAD_SREG) != nil && base == unix.NFT_PAYLOAD_NETWORK_HEADER && (at == offsetTTL || at == offsetHopLimit):
			return shortens
		case e.Name == "target" && name == "TCPMSS", e.Name == "exthdr" && setsSegmentSize(e):
			return clamps
		}
	}
	return ""
}

// setsSegmentSize reports whether an expression writes TCP's option with the segment size.
func setsSegmentSize(e *nft.Expression) bool {
	const maxSegmentSize = 2 // RFC 9293
	op, _ := e.Number(unix.NFTA_EXTHDR_OP)
	return e.Attr(unix.NFTA_EXTHDR_SREG) != nil && op == unix.NFT_EXTHDR_OP_TCPOPT && bytes.Equal(e.Attr(unix.NFTA_EXTHDR_TYPE), []byte{maxSegmentSize})
}

func (r *nftRule) match(p *Packet) (matches truth, verdicts []string) {
	g := newRegisters()
	matches, verdicts = yes, []string{r.Verdict}
	for i := range r.Expressions {
		e := &r.Expressions[i]
		var is truth
		switch e.Name {
		case "lookup":
			var of []string
			if is, of = r.lookup(e, g); of != nil {
				verdicts = of
			}
		case "reject":
			is, verdicts = yes, []string{"drop"}
		case "target":
			is, verdicts = yes, []string{r.target(nlconn.Text(e.Attr(iptables.TargetName)))}
			if info := e.Attr(unix.NFTA_TARGET_INFO); nlconn.Text(e.Attr(iptables.TargetName)) == "MARK" && len(info) >= markTargetSize {
				p.setMark(binary.NativeEndian.Uint32(info), ^uint32(0), binary.NativeEndian.Uint32(info[4:]), matches)
			}
		case "nat", "redir":
			is, verdicts = yes, []string{translates}
		case "queue", "fwd", "synproxy", "tproxy":
			is, verdicts = yes, []string{anyVerdict}
		default:
			is = p.evaluate(e, g)
			if key, _ := e.Number(unix.NFTA_META_KEY); e.Name == "meta" && key == unix.NFT_META_MARK && e.Attr(unix.NFTA_META_SREG) != nil {
				from, _ := e.Number(unix.NFTA_META_SREG)
				mark := g.get(from, 4)
				p.setMark(binary.NativeEndian.Uint32(mark.bits), binary.NativeEndian.Uint32(mark.known), ^uint32(0), matches)
			}
		}
		matches = min(matches, is)
		if matches == no {
			break
		}
	}
	return matches, verdicts
}

func (r *nftRule) target(name string) string {
	switch name {
	case "REJECT":
		return "drop"
	case "DNAT", "REDIRECT":
		return translates
	}
	return targetVerdict(name)
}

// evaluate runs an expression that does not depend on other objects: it loads registers, or compares them.
func (p *Packet) evaluate(e *nft.Expression, g registers) truth {
	number := func(kind uint16) uint32 { v, _ := e.Number(kind); return v }
	data := func(kind uint16) []byte { b, _ := nft.DecodeData(e.Attr(kind)); return b }
	switch e.Name {
	case "log", "notrack", "objref", "comment", "last":
	case "immediate":
		if to := number(unix.NFTA_IMMEDIATE_DREG); to != unix.NFT_REG_VERDICT {
			g.set(to, known(data(unix.NFTA_IMMEDIATE_DATA)))
		}
	case "meta":
		if e.Attr(unix.NFTA_META_DREG) != nil {
			g.set(number(unix.NFTA_META_DREG), p.meta(number(unix.NFTA_META_KEY)))
		}
	case "payload":
		if e.Attr(unix.NFTA_PAYLOAD_DREG) != nil {
			field := p.header(number(unix.NFTA_PAYLOAD_BASE)).at(int(number(unix.NFTA_PAYLOAD_OFFSET)), min(int(number(unix.NFTA_PAYLOAD_LEN)), registerBytes))
			g.set(number(unix.NFTA_PAYLOAD_DREG), field)
		}
	case "fib":
		g.set(number(fibDestination), p.fib(number(fibResult), number(fibFlags)))
	case "ct":
		if e.Attr(unix.NFTA_CT_DREG) != nil {
			g.set(number(unix.NFTA_CT_DREG), p.conntrack(number(unix.NFTA_CT_KEY), e.Attr(ctDirection)))
		}
	case "bitwise":
		mask, xor := data(unix.NFTA_BITWISE_MASK), data(unix.NFTA_BITWISE_XOR)
		v := g.get(number(unix.NFTA_BITWISE_SREG), len(mask))
		for i := range mask {
			if i < len(xor) {
				v.bits[i], v.known[i] = v.bits[i]&mask[i]^xor[i], v.known[i]|^mask[i]
			}
		}
		g.set(number(unix.NFTA_BITWISE_DREG), v)
	case "cmp":
		want := data(unix.NFTA_CMP_DATA)
		return compare(g.get(number(unix.NFTA_CMP_SREG), len(want)), number(unix.NFTA_CMP_OP), want)
	case "range":
		low, high := data(unix.NFTA_RANGE_FROM_DATA), data(unix.NFTA_RANGE_TO_DATA)
		v := g.get(number(unix.NFTA_RANGE_SREG), len(low))
		if !v.isKnown() {
			return maybe
		}
		within := is(bytes.Compare(low, v.bits) <= 0 && bytes.Compare(v.bits, high) <= 0)
		if number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
			return within.not()
		}
		return within
	case "limit", "connlimit": // a packet alone exceeds no limit
		flags := number(unix.NFTA_LIMIT_FLAGS)
		if e.Name == "connlimit" {
			flags = number(connlimitFlags)
		}
		return is(flags&unix.NFT_LIMIT_F_INV == 0)
	case "tcp", "udp", "multiport", "conntrack", "state", "mark", "rpfilter", "addrtype", "pkttype":
		return p.iptablesMatch(e.Name, e.Attr(unix.NFTA_MATCH_INFO))
	default:
		clear(g.known) // it may have written any register
		return maybe
	}
	return yes
}

// compare compares a field with a constant by an operator (NFT_CMP_*).
func compare(v value, op uint32, want []byte) truth {
	if op == unix.NFT_CMP_EQ {
		return v.equals(want)
	}
	if op == unix.NFT_CMP_NEQ {
		return v.equals(want).not()
	}
	if !v.isKnown() {
		return maybe
	}
	order := bytes.Compare(v.bits, want)
	switch op {
	case unix.NFT_CMP_LT:
		return is(order < 0)
	case unix.NFT_CMP_LTE:
		return is(order <= 0)
	case unix.NFT_CMP_GT:
		return is(order > 0)
	case unix.NFT_CMP_GTE:
		return is(order >= 0)
	}
	return maybe
}

// meta returns a property of the packet. It is invalid if it is not known.
func (p *Packet) meta(key uint32) value {
	device := func(name string) value {
		if name == "" && p.Direction == Forwarded {
			return value{}
		}
		return known(append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...))
	}
	switch key {
	case unix.NFT_META_L4PROTO:
		if p.Protocol == 0 {
			return value{}
		}
		return known([]byte{p.Protocol})
	case unix.NFT_META_NFPROTO:
		return known([]byte{p.family()})
	case unix.NFT_META_PROTOCOL:
		return known(p.etherType())
	case unix.NFT_META_IIF:
		return p.number(p.In)
	case unix.NFT_META_OIF:
		return p.number(p.Out)
	case unix.NFT_META_PKTTYPE:
		return known([]byte{unix.PACKET_HOST})
	case unix.NFT_META_IIFNAME:
		return device(p.In)
	case unix.NFT_META_OIFNAME:
		return device(p.Out)
	case unix.NFT_META_MARK:
		return p.marked()
	}
	return value{}
}

// number returns the number of a device.
func (p *Packet) number(device string) value {
	if device == "" || p.filter == nil {
		return value{}
	}
	index, err := p.filter.index(context.Background(), device)
	if err != nil {
		return value{} // it was deleted meanwhile
	}
	return known(binary.NativeEndian.AppendUint32(nil, uint32(index)))
}

func (p *Packet) etherType() []byte {
	kind := uint16(unix.ETH_P_IP)
	switch {
	case p.IsARP:
		kind = unix.ETH_P_ARP
	case p.family() == unix.NFPROTO_IPV6:
		kind = unix.ETH_P_IPV6
	}
	return binary.BigEndian.AppendUint16(nil, kind)
}

// Attributes and values of the expression fib (linux/netfilter/nf_tables.h).
const (
	fibDestination = 1
	fibResult      = 2
	fibFlags       = 3
	fibByType      = 3
	fibBySource    = 1
	fibIsPresent   = 1 << 5
)

// fib returns what the kernel's routes say about an address. That the packet's sender has a route by its device is taken for granted: checks of
// their own compare the routes to pods.
func (p *Packet) fib(result, flags uint32) value {
	switch {
	case flags&(fibBySource|fibIsPresent) == fibBySource|fibIsPresent:
		return known([]byte{1})
	case result == fibByType && p.Direction == Forwarded && !p.IsTranslated && !p.isTranslatedBack:
		return known(binary.NativeEndian.AppendUint32(nil, unix.RTN_UNICAST))
	}
	return value{}
}

// header returns a header of the packet as far as it is known (RFC 791, RFC 826, RFC 8200, RFC 768, RFC 9293).
func (p *Packet) header(base uint32) (v value) {
	put := func(offset int, b []byte) {
		for len(v.bits) < offset+len(b) {
			v.bits, v.known = append(v.bits, 0), append(v.known, 0)
		}
		copy(v.bits[offset:], b)
		copy(v.known[offset:], bytes.Repeat([]byte{0xff}, len(b)))
	}
	protocol, source, destination := 9, 12, 16
	if p.family() == unix.NFPROTO_IPV6 {
		protocol, source, destination = 6, 8, 24
	}
	switch base {
	case unix.NFT_PAYLOAD_LL_HEADER:
		put(offsetEtherType, p.etherType())
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		if p.IsARP {
			put(0, []byte{0, 1, 8, 0, 6, 4, 0, 1}) // Ethernet, IPv4, their lengths, a request
			put(offsetSender, p.Source.Addr().AsSlice())
			put(offsetTarget, p.Destination.Addr().AsSlice())
			return v
		}
		if p.family() == unix.NFPROTO_IPV4 {
			put(offsetFragment, []byte{0, 0})
			v.known[offsetFragment] = 0xbf // all but "don't fragment"
		}
		if p.Protocol != 0 {
			put(protocol, []byte{p.Protocol})
		}
		put(source, p.Source.Addr().AsSlice())
		if !p.isTranslatedBack {
			put(destination, p.Destination.Addr().AsSlice())
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		for i, port := range []uint16{p.Source.Port(), p.Destination.Port()} {
			if port != 0 {
				put(2*i, binary.BigEndian.AppendUint16(nil, port))
			}
		}
		if flags, ok := p.tcpFlags(); ok {
			put(offsetFlags, []byte{flags})
			v.known[offsetFlags] = allFlags
		}
	}
	return v
}

// Bits of the states of nftables and of xt_conntrack, and of IPS_SRC_NAT and IPS_DST_NAT.
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
	statusTranslated = 1<<4 | 1<<5
)

// connlimitFlags is NFTA_CONNLIMIT_FLAGS of linux/netfilter/nf_tables.h.
const connlimitFlags = 2

// ctDirection is NFTA_CT_DIRECTION of linux/netfilter/nf_tables.h, whose value 0 is the original direction.
const ctDirection = 3

func (p *Packet) conntrack(key uint32, direction []byte) value {
	bit := map[State]uint32{New: stateNew, Established: stateEstablished}[p.State]
	switch {
	case key == unix.NFT_CT_STATE && bit != 0:
		return known(binary.NativeEndian.AppendUint32(nil, bit))
	case key == unix.NFT_CT_PROTO_DST && p.Original.IsValid() && len(direction) == 1 && direction[0] == 0:
		return known(binary.BigEndian.AppendUint16(nil, p.Original.Port()))
	case key == unix.NFT_CT_STATUS && !p.mayBeTranslated():
		return value{make([]byte, 4), binary.NativeEndian.AppendUint32(nil, statusTranslated)}
	}
	return value{}
}
