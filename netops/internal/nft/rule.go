package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rule is one nftables rule: its parts in order. The expressions are built only
// when they are needed, because most processes never need them.
type Rule []Part

// Part appends one part of a rule. The order of parts is the same as in nft's
// syntax.
type Part func(*Builder)

// Builder loads the fields to match into consecutive registers. A lookup uses the
// registers as one concatenated key.
type Builder struct {
	Exprs  []expr.Any
	Next   uint32 // the register that the next field is loaded into
	Family byte   // the NFPROTO_* to which the rule is limited, 0 for any
}

// FirstRegister is NFT_REG32_00. Concatenations need registers of 4 bytes.
const FirstRegister = unix.NFT_REG32_00

// NewRule returns a rule of parts: NewRule(InputLink(), Source4(), In(set),
// Masquerade()).
func NewRule(parts ...Part) Rule { return parts }

// exprs returns the rule's expressions in order.
func (r Rule) exprs() []expr.Any {
	b := &Builder{Next: FirstRegister}
	for _, part := range r {
		part(b)
	}
	if b.Family == 0 {
		return b.Exprs
	}
	// Match the family first: the fields of the network header depend on it.
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

// Load loads a field of a packet header. If l3 is not 0, it limits the rule to
// that NFPROTO_*.
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

// InputLink loads the name of the input device (iifname).
func InputLink() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: b.Take(IfName)})
	}
}

// metaInputKind is NFT_META_IIFKIND of linux/netfilter/nf_tables.h.
const metaInputKind = 26

// InputKind loads the kind of the input device (iifkind). A physical device has
// none, and the rule does not match.
func InputKind() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: metaInputKind, Register: b.Take(IfKind)})
	}
}

// InputGroup loads the group of the input device (iifgroup).
func InputGroup() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: b.Take(IfGroup)})
	}
}

// InputBegins matches input devices whose name has a prefix (iifname "veth*").
func InputBegins(prefix string) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: b.Next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: []byte(prefix)},
		)
	}
}

// Source4 loads ip saddr and limits the rule to IPv4 (offsets: RFC 791 §3.1).
func Source4() Part { return Load(expr.PayloadBaseNetworkHeader, 12, IP4Addr, unix.NFPROTO_IPV4) }

// Destination4 loads ip daddr and limits the rule to IPv4.
func Destination4() Part {
	return Load(expr.PayloadBaseNetworkHeader, 16, IP4Addr, unix.NFPROTO_IPV4)
}

// Source6 loads ip6 saddr and limits the rule to IPv6 (offsets: RFC 8200 §3).
func Source6() Part { return Load(expr.PayloadBaseNetworkHeader, 8, IP6Addr, unix.NFPROTO_IPV6) }

// Destination6 loads ip6 daddr and limits the rule to IPv6.
func Destination6() Part {
	return Load(expr.PayloadBaseNetworkHeader, 24, IP6Addr, unix.NFPROTO_IPV6)
}

// SourceMAC loads ether saddr.
func SourceMAC() Part { return Load(expr.PayloadBaseLLHeader, 6, EtherAddr, 0) }

// DestinationIn matches packets whose destination address is within a prefix.
func DestinationIn(prefix string) Part {
	return Within(prefix, Destination4, Destination6, expr.CmpOpEq)
}

// In matches if the loaded key is in the set.
func In(set *Set) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Lookup{SourceRegister: FirstRegister, SetName: set.Name})
		b.Next = FirstRegister
	}
}

// Return ends the chain for the packet. In a base chain the chain's policy
// decides then.
func Return() Part { return endWith(expr.VerdictReturn) }

// Drop drops the packet.
func Drop() Part { return endWith(expr.VerdictDrop) }

func endWith(kind expr.VerdictKind) Part {
	return func(b *Builder) { b.Exprs = append(b.Exprs, &expr.Verdict{Kind: kind}) }
}

// Masquerade translates the packet's source to the address of the output device.
func Masquerade() Part {
	return func(b *Builder) { b.Exprs = append(b.Exprs, &expr.Masq{}) }
}

// MasqueradeAtRandom masquerades with random ports (nft's fully-random). It makes it less likely that
// simultaneous new connections choose the same port.
func MasqueradeAtRandom() Part {
	return func(b *Builder) { b.Exprs = append(b.Exprs, &expr.Masq{FullyRandom: true}) }
}

// Match compares the bytes at an offset of a packet header with want.
func (b *Builder) Match(base expr.PayloadBase, offset uint32, want []byte) {
	b.Exprs = append(b.Exprs,
		&expr.Payload{Base: base, Offset: offset, Len: uint32(len(want)), DestRegister: b.Next},
		&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: want},
	)
}
