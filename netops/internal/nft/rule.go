package nft

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Rule is one nftables rule: its parts in order. The expressions are encoded only
// when they are needed, because most processes never need them.
type Rule []Part

// Part appends one part of a rule. The order of parts is the same as in nft's
// syntax.
type Part func(*Builder)

// Builder loads the fields to match into consecutive registers. A lookup uses the
// registers as one concatenated key.
type Builder struct {
	*nlconn.Body
	Next    uint32 // the register that the next field is loaded into
	Family  byte   // the NFPROTO_* to which the rule is limited, 0 for any
	comment string
}

// FirstRegister is NFT_REG32_00. Concatenations need registers of 4 bytes.
const FirstRegister = unix.NFT_REG32_00

// NewRule returns a rule of parts: NewRule(InputLink(), Source4(), In(set),
// Masquerade()).
func NewRule(parts ...Part) Rule { return parts }

// build appends the rule's expressions to a body.
func (r Rule) build(to *nlconn.Body) *Builder {
	b, start := &Builder{Body: to, Next: FirstRegister}, len(*to)
	Together(r...)(b)
	if b.Family != 0 { // before the fields of the network header, which depend on it
		first := &Builder{Body: new(nlconn.Body), Next: FirstRegister}
		InFamily(b.Family)(first)
		*to = slices.Insert(*to, start, *first.Body...)
	}
	return b
}

// Fill gives a request the rule's expressions and comment.
func (r Rule) Fill(m *nlconn.Message) {
	comment := ""
	m.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { comment = r.build(&m.Body).comment })
	if comment != "" {
		m.Bytes(unix.NFTA_RULE_USERDATA, LabelUserData(comment))
	}
}

// Comment returns the rule's comment, or "".
func (r Rule) Comment() string { return r.build(new(nlconn.Body)).comment }

// Take reserves the registers for one field and returns the first.
func (b *Builder) Take(f Field) uint32 {
	r := b.Next
	b.Next += uint32(f.padded() / 4)
	return r
}

// Load loads a field of a packet header. If l3 is not 0, it limits the rule to
// that NFPROTO_*.
func Load(base, offset uint32, f Field, l3 byte) Part {
	return func(b *Builder) {
		if l3 != 0 {
			b.Family = l3
		}
		b.Payload(base, offset, uint32(f.Size()), b.Take(f))
	}
}

// InputLink loads the name of the input device (iifname).
func InputLink() Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_IIFNAME, b.Take(IfName))
	}
}

// metaInputKind is NFT_META_IIFKIND of linux/netfilter/nf_tables.h.
const metaInputKind = 26

// InputKind loads the kind of the input device (iifkind). A physical device has
// none, and the rule does not match.
func InputKind() Part {
	return func(b *Builder) {
		b.Meta(metaInputKind, b.Take(IfKind))
	}
}

// InputGroup loads the group of the input device (iifgroup).
func InputGroup() Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_IIFGROUP, b.Take(IfGroup))
	}
}

// InputBegins matches input devices whose name has a prefix (iifname "veth*").
func InputBegins(prefix string) Part {
	return CompareMeta(unix.NFT_META_IIFNAME, unix.NFT_CMP_EQ, []byte(prefix))
}

// Source4 loads ip saddr and limits the rule to IPv4 (offsets: RFC 791 §3.1).
func Source4() Part { return Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 12, IP4Addr, unix.NFPROTO_IPV4) }

// Destination4 loads ip daddr and limits the rule to IPv4.
func Destination4() Part {
	return Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, IP4Addr, unix.NFPROTO_IPV4)
}

// Source6 loads ip6 saddr and limits the rule to IPv6 (offsets: RFC 8200 §3).
func Source6() Part { return Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 8, IP6Addr, unix.NFPROTO_IPV6) }

// Destination6 loads ip6 daddr and limits the rule to IPv6.
func Destination6() Part {
	return Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, IP6Addr, unix.NFPROTO_IPV6)
}

// SourceMAC loads ether saddr.
func SourceMAC() Part { return Load(unix.NFT_PAYLOAD_LL_HEADER, 6, EtherAddr, 0) }

// DestinationMAC loads ether daddr.
func DestinationMAC() Part { return Load(unix.NFT_PAYLOAD_LL_HEADER, 0, EtherAddr, 0) }

// DestinationIn matches packets whose destination address is within a prefix.
func DestinationIn(prefix string) Part {
	return Within(prefix, Destination4, Destination6, unix.NFT_CMP_EQ)
}

// In matches if the loaded key is in the set.
func In(set *Set) Part { return lookUp(set, false) }

// NotIn matches if it is not.
func NotIn(set *Set) Part { return lookUp(set, true) }

func lookUp(set *Set, invert bool) Part {
	return func(b *Builder) {
		b.Lookup(set.Name, invert)
		b.Next = FirstRegister
	}
}

// Is compares the only loaded field with data.
func Is(data []byte) Part { return Compared(unix.NFT_CMP_EQ, data) }

// Compared is Is with another comparison, NFT_CMP_*.
func Compared(op uint32, data []byte) Part {
	return func(b *Builder) {
		b.Compare(op, FirstRegister, data)
		b.Next = FirstRegister
	}
}

// Among matches if the only loaded field is in a range.
func Among(first, last []byte) Part {
	if bytes.Equal(first, last) {
		return Is(first)
	}
	return func(b *Builder) {
		b.Compare(unix.NFT_CMP_GTE, FirstRegister, first)
		b.Compare(unix.NFT_CMP_LTE, FirstRegister, last)
		b.Next = FirstRegister
	}
}

// Masked keeps the bits of a mask in the only loaded field.
func Masked(mask []byte) Part { return func(b *Builder) { b.Mask(FirstRegister, mask, nil) } }

// Return ends the chain for the packet. In a base chain the chain's policy
// decides then.
func Return() Part { return endWith(unix.NFT_RETURN) }

// Drop drops the packet.
func Drop() Part { return endWith(VerdictDrop) }

// Accept ends the base chain for the packet.
func Accept() Part { return endWith(VerdictAccept) }

func endWith(code int32) Part { return func(b *Builder) { b.Verdict(code, "") } }

// Counter counts the packets that reach it.
func Counter() Part { return func(b *Builder) { b.Add("counter", func() {}) } }

// Comment is shown by nft.
func Comment(text string) Part { return func(b *Builder) { b.comment = text } }

// Together makes one part of several.
func Together(parts ...Part) Part {
	return func(b *Builder) {
		for _, part := range parts {
			part(b)
		}
	}
}

// Masquerade translates the packet's source to the address of the output device.
func Masquerade() Part {
	return func(b *Builder) { b.Add("masq", func() {}) }
}

// MasqueradeAtRandom masquerades with random ports (nft's fully-random). It makes it less likely that
// simultaneous new connections choose the same port.
func MasqueradeAtRandom() Part {
	const fully = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	return func(b *Builder) { b.numbers("masq", unix.NFTA_MASQ_FLAGS, fully) }
}

// Match compares the bytes at an offset of a packet header with want.
func (b *Builder) Match(base, offset uint32, want []byte) {
	b.Payload(base, offset, uint32(len(want)), b.Next)
	b.Compare(unix.NFT_CMP_EQ, b.Next, want)
}
