package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rule is one rule: its parts in order. Expressions are made of them when
// they are needed, which in most processes is never.
type Rule []Part

// Part appends one part of a rule, in the order in which nft would write it.
type Part func(*Builder)

// Builder loads what is matched into consecutive registers; a lookup
// takes them as one concatenated key.
type Builder struct {
	Exprs  []expr.Any
	Next   uint32 // the register that the next field is loaded into
	Family byte   // the NFPROTO_* that the rule is limited to, 0 for any
}

// FirstRegister is NFT_REG32_00: registers of 4 bytes, as concatenations need.
const FirstRegister = unix.NFT_REG32_00

// NewRule puts parts together: rule(InputLink(), source4(), in(set), masquerade()).
func NewRule(parts ...Part) Rule { return parts }

// exprs are the rule's expressions in order.
func (r Rule) exprs() []expr.Any {
	b := &Builder{Next: FirstRegister}
	for _, part := range r {
		part(b)
	}
	if b.Family == 0 {
		return b.Exprs
	}
	// The header's fields mean nothing before the family is known.
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: FirstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: FirstRegister, Data: []byte{b.Family}},
	}, b.Exprs...)
}

// Take reserves the registers for one field and returns the first.
func (b *Builder) Take(f Field) uint32 {
	r := b.Next
	b.Next += uint32(f.padded() / 4)
	return r
}

// Load reads a field of a packet header.
func Load(base expr.PayloadBase, offset uint32, f Field, l3 byte) Part {
	return func(b *Builder) {
		if l3 != 0 {
			b.Family = l3
		}
		b.Exprs = append(b.Exprs, &expr.Payload{
			Base: base, Offset: offset, Len: uint32(f.Size()), DestRegister: b.Take(f),
		})
	}
}

// InputLink is iifname: the device that the packet came in by.
func InputLink() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: b.Take(IfName)})
	}
}

// Source4 is ip saddr, and limits the rule to IPv4 (offsets: RFC 791 §3.1).
func Source4() Part { return Load(expr.PayloadBaseNetworkHeader, 12, IP4Addr, unix.NFPROTO_IPV4) }

// Destination4 is ip daddr.
func Destination4() Part {
	return Load(expr.PayloadBaseNetworkHeader, 16, IP4Addr, unix.NFPROTO_IPV4)
}

// Source6 is ip6 saddr, and limits the rule to IPv6 (offsets: RFC 8200 §3).
func Source6() Part { return Load(expr.PayloadBaseNetworkHeader, 8, IP6Addr, unix.NFPROTO_IPV6) }

// Destination6 is ip6 daddr.
func Destination6() Part {
	return Load(expr.PayloadBaseNetworkHeader, 24, IP6Addr, unix.NFPROTO_IPV6)
}

// SourceMAC is ether saddr.
func SourceMAC() Part { return Load(expr.PayloadBaseLLHeader, 6, EtherAddr, 0) }

// DestinationIn is ip daddr or ip6 daddr within a fixed prefix.
func DestinationIn(prefix string) Part {
	return Within(prefix, Destination4, Destination6, expr.CmpOpEq)
}

// In matches if what was loaded so far is in the set.
func In(set *Set) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Lookup{SourceRegister: FirstRegister, SetName: set.Name})
		b.Next = FirstRegister
	}
}

// Return ends the chain for the packet: the chain's policy decides.
func Return() Part { return endWith(expr.VerdictReturn) }

// Drop drops the packet.
func Drop() Part { return endWith(expr.VerdictDrop) }

func endWith(kind expr.VerdictKind) Part {
	return func(b *Builder) { b.Exprs = append(b.Exprs, &expr.Verdict{Kind: kind}) }
}

// Masquerade gives the packet the address of the device it leaves by.
func Masquerade() Part {
	return func(b *Builder) { b.Exprs = append(b.Exprs, &expr.Masq{}) }
}

// Match compares bytes of a packet.
func (b *Builder) Match(base expr.PayloadBase, offset uint32, want []byte) {
	b.Exprs = append(b.Exprs,
		&expr.Payload{Base: base, Offset: offset, Len: uint32(len(want)), DestRegister: b.Next},
		&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: want},
	)
}
