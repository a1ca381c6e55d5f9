package netops

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nftRule is one rule: its parts in order. Expressions are made of them when
// they are needed, which in most processes is never.
type nftRule []rulePart

// rulePart appends one part of a rule, in the order in which nft would write it.
type rulePart func(*ruleBuilder)

// ruleBuilder loads what is matched into consecutive registers; a lookup
// takes them as one concatenated key.
type ruleBuilder struct {
	exprs []expr.Any
	next  uint32 // the register that the next field is loaded into
	l3    byte   // the NFPROTO_* that the rule is limited to, 0 for any
}

// firstRegister is NFT_REG32_00: registers of 4 bytes, as concatenations need.
const firstRegister = unix.NFT_REG32_00

// rule puts parts together: rule(inputLink(), source4(), in(set), masquerade()).
func rule(parts ...rulePart) nftRule { return parts }

// exprs are the rule's expressions in order.
func (r nftRule) exprs() []expr.Any {
	b := &ruleBuilder{next: firstRegister}
	for _, part := range r {
		part(b)
	}
	if b.l3 == 0 {
		return b.exprs
	}
	// The header's fields mean nothing before the family is known.
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{b.l3}},
	}, b.exprs...)
}

// take reserves the registers for one field and returns the first.
func (b *ruleBuilder) take(f field) uint32 {
	r := b.next
	b.next += uint32(f.padded() / 4)
	return r
}

// load reads a field of a packet header.
func load(base expr.PayloadBase, offset uint32, f field, l3 byte) rulePart {
	return func(b *ruleBuilder) {
		if l3 != 0 {
			b.l3 = l3
		}
		b.exprs = append(b.exprs, &expr.Payload{
			Base: base, Offset: offset, Len: uint32(f.size()), DestRegister: b.take(f),
		})
	}
}

// inputLink is iifname: the device that the packet came in by.
func inputLink() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: b.take(ifName)})
	}
}

// source4 is ip saddr, and limits the rule to IPv4 (offsets: RFC 791 §3.1).
func source4() rulePart { return load(expr.PayloadBaseNetworkHeader, 12, ip4Addr, unix.NFPROTO_IPV4) }

// destination4 is ip daddr.
func destination4() rulePart {
	return load(expr.PayloadBaseNetworkHeader, 16, ip4Addr, unix.NFPROTO_IPV4)
}

// source6 is ip6 saddr, and limits the rule to IPv6 (offsets: RFC 8200 §3).
func source6() rulePart { return load(expr.PayloadBaseNetworkHeader, 8, ip6Addr, unix.NFPROTO_IPV6) }

// destination6 is ip6 daddr.
func destination6() rulePart {
	return load(expr.PayloadBaseNetworkHeader, 24, ip6Addr, unix.NFPROTO_IPV6)
}

// sourceMAC is ether saddr.
func sourceMAC() rulePart { return load(expr.PayloadBaseLLHeader, 6, etherAddr, 0) }

// destinationIn is ip daddr or ip6 daddr within a fixed prefix.
func destinationIn(prefix string) rulePart {
	return within(prefix, destination4, destination6, expr.CmpOpEq)
}

// in matches if what was loaded so far is in the set.
func in(set *nftSet) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Lookup{SourceRegister: firstRegister, SetName: set.name})
		b.next = firstRegister
	}
}

// returns ends the chain for the packet: the chain's policy decides.
func returns() rulePart { return endWith(expr.VerdictReturn) }

// drops drops the packet.
func drops() rulePart { return endWith(expr.VerdictDrop) }

func endWith(kind expr.VerdictKind) rulePart {
	return func(b *ruleBuilder) { b.exprs = append(b.exprs, &expr.Verdict{Kind: kind}) }
}

// masquerade gives the packet the address of the device it leaves by.
func masquerade() rulePart {
	return func(b *ruleBuilder) { b.exprs = append(b.exprs, &expr.Masq{}) }
}
