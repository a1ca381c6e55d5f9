package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// OutputLink loads the name of the output device (oifname).
func OutputLink() Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_OIFNAME, b.Take(IfName))
	}
}

// Tracked matches if any of the bits is set in a field of the connection tracking
// entry.
func Tracked(key, bits uint32) Part { return tracked(key, bits, unix.NFT_CMP_NEQ) }

// NotTracked matches if none of them is.
func NotTracked(key, bits uint32) Part { return tracked(key, bits, unix.NFT_CMP_EQ) }

func tracked(key, bits, op uint32) Part {
	return func(b *Builder) {
		b.Ct(key, b.Next)
		b.Mask(b.Next, binary.NativeEndian.AppendUint32(nil, bits), nil)
		b.Compare(op, b.Next, make([]byte, 4))
	}
}

// ToThisNode matches packets to a local address of the node (fib daddr type
// local).
func ToThisNode() Part { return ofThisNode(unix.NFTA_FIB_F_DADDR, unix.NFT_CMP_EQ) }

// FromThisNode matches packets whose source is an address of the node (fib saddr type local), or with NFT_CMP_NEQ others.
func FromThisNode(op uint32) Part { return ofThisNode(unix.NFTA_FIB_F_SADDR, op) }

func ofThisNode(address, op uint32) Part {
	return func(b *Builder) {
		b.Fib(unix.NFT_FIB_RESULT_ADDRTYPE, address, b.Next)
		b.Compare(op, b.Next, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
	}
}

// NoRouteBack matches packets that arrived on a link over which no route leads to the source (fib saddr . iif oif missing). It does not match the
// unspecified address where a host without an address uses it.
func NoRouteBack() Part {
	return func(b *Builder) {
		b.Fib(unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_PRESENT, b.Next)
		b.Compare(unix.NFT_CMP_EQ, b.Next, make([]byte, 4)) // nft lists fewer bytes as "missing/8", which it does not load
	}
}

// CompareMeta compares what the kernel knows about a packet, NFT_META_*, with data.
func CompareMeta(key, op uint32, data []byte) Part {
	return func(b *Builder) {
		b.Meta(key, b.Next)
		b.Compare(op, b.Next, data)
	}
}

// HasHeader matches packets that have a header or an option of a type: an extension header with NFT_EXTHDR_OP_IPV6.
func HasHeader(op uint32, kind uint8) Part {
	return func(b *Builder) {
		b.Exthdr(op, kind, b.Next)
		b.Compare(unix.NFT_CMP_EQ, b.Next, []byte{1})
	}
}

// InFamily matches packets of one address family, NFPROTO_*, where it stands. OfFamily does at the begin of the rule.
func InFamily(l3 byte) Part { return CompareMeta(unix.NFT_META_NFPROTO, unix.NFT_CMP_EQ, []byte{l3}) }

// OfFamily limits a rule to one address family. Rules that load an address do not
// need it.
func OfFamily(l3 byte) Part { return func(b *Builder) { b.Family = l3 } }

// Next starts a new lookup key: the next field is loaded into the first register.
func Next() Part { return func(b *Builder) { b.Next = FirstRegister } }

// TransportProtocol loads the transport protocol (meta l4proto).
func TransportProtocol() Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_L4PROTO, b.Take(InetProto))
	}
}

// OfProtocol limits a rule to one transport protocol, IPPROTO_*.
func OfProtocol(protocol byte) Part {
	return CompareMeta(unix.NFT_META_L4PROTO, unix.NFT_CMP_EQ, []byte{protocol})
}

// TransportPort loads the destination port (th dport). TCP, UDP and SCTP have it
// at the same offset (RFC 9293 §3.1, RFC 768, RFC 9260 §3.1).
func TransportPort() Part { return Load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, InetService, 0) }

// SourceIn matches packets whose source address is within a prefix.
func SourceIn(prefix string) Part {
	return Within(prefix, Source4, Source6, unix.NFT_CMP_EQ)
}

// VerdictFrom looks up the loaded key in a map and applies the verdict of the
// element.
func VerdictFrom(set *Set) Part {
	return func(b *Builder) {
		b.LookupInto(set.Name, unix.NFT_REG_VERDICT)
		b.Next = FirstRegister
	}
}

// DestinationFrom looks up the loaded key in a map and translates the packet's
// destination to the address and port of the element. If the map's data is only an
// address, the packet keeps its port.
func DestinationFrom(set *Set, l3 byte) Part {
	return func(b *Builder) {
		b.LookupInto(set.Name, FirstRegister)
		nat := []uint32{unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT, unix.NFTA_NAT_FAMILY, uint32(l3), unix.NFTA_NAT_REG_ADDR_MIN, FirstRegister}
		if len(set.Data) > 1 {
			const specified = 1 << 1 // NF_NAT_RANGE_PROTO_SPECIFIED
			nat = append(nat, unix.NFTA_NAT_REG_PROTO_MIN, uint32(FirstRegister+set.Data[0].padded()/4), unix.NFTA_NAT_FLAGS, specified)
		}
		b.numbers("nat", nat...)
	}
}

// SourceFrom looks up the loaded key in a map and translates the packet's source to the
// address of the element.
func SourceFrom(set *Set, l3 byte) Part {
	return func(b *Builder) {
		b.LookupInto(set.Name, FirstRegister)
		SourceLoaded(l3)(b)
	}
}

// Goto continues in another chain of the table and does not return to this chain.
func Goto(chain string) Part { return leadTo(unix.NFT_GOTO, chain) }

// Jump continues in another chain of the table, and returns to this one.
func Jump(chain string) Part { return leadTo(unix.NFT_JUMP, chain) }

func leadTo(code int32, chain string) Part { return func(b *Builder) { b.Verdict(code, chain) } }

// Within compares an address with a fixed prefix. four and six load the address
// of each family. With NFT_CMP_EQ the address must be in the prefix, with NFT_CMP_NEQ
// outside it.
func Within(prefix string, four, six func() Part, op uint32) Part {
	p := netip.MustParsePrefix(prefix)
	address, f := four(), IP4Addr
	if p.Addr().Is6() {
		address, f = six(), IP6Addr
	}
	return func(b *Builder) {
		r := b.Next
		address(b)
		b.Mask(r, net.CIDRMask(p.Bits(), 8*f.Size()), nil)
		b.Compare(op, r, p.Masked().Addr().AsSlice())
		b.Next = r
	}
}

// CompareMark compares some bits of the packet's mark.
func CompareMark(bits, op, with uint32) Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_MARK, b.Next)
		b.Mask(b.Next, binary.NativeEndian.AppendUint32(nil, bits), nil)
		b.Compare(op, b.Next, binary.NativeEndian.AppendUint32(nil, with))
	}
}

// SetMarkBit sets one bit of the packet's mark and keeps the others.
func SetMarkBit(bit int) Part { return SetMark(0, 1<<bit) }

// SetMark clears bits of the packet's mark, sets others, and keeps the rest.
func SetMark(clear, set uint32) Part {
	return func(b *Builder) {
		b.Meta(unix.NFT_META_MARK, b.Next)
		b.Mask(b.Next, binary.NativeEndian.AppendUint32(nil, ^(clear|set)), binary.NativeEndian.AppendUint32(nil, set))
		b.SetMeta(unix.NFT_META_MARK, b.Next)
	}
}

// SetConnectionMarkBit sets one bit of the connection's mark and keeps the others.
func SetConnectionMarkBit(bit int) Part {
	return func(b *Builder) {
		mask := binary.NativeEndian.AppendUint32(nil, ^uint32(0)^1<<bit)
		xor := binary.NativeEndian.AppendUint32(nil, 1<<bit)
		b.Ct(unix.NFT_CT_MARK, b.Next)
		b.Mask(b.Next, mask, xor)
		b.SetCt(unix.NFT_CT_MARK, b.Next)
	}
}

// SourceTo translates the packet's source to an address.
func SourceTo(address []byte, l3 byte) Part {
	return func(b *Builder) {
		b.Immediate(FirstRegister, address)
		SourceLoaded(l3)(b)
	}
}

// SourceLoaded translates the packet's source to the only loaded field, an address.
func SourceLoaded(l3 byte) Part {
	return func(b *Builder) {
		b.numbers("nat", unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT, unix.NFTA_NAT_FAMILY, uint32(l3), unix.NFTA_NAT_REG_ADDR_MIN, FirstRegister)
		b.Next = FirstRegister
	}
}

// Nexthop loads the gateway of the packet's route, or its destination if the route has none. The key is NFT_RT_NEXTHOP4 or
// NFT_RT_NEXTHOP6.
func Nexthop(key uint32) Part {
	return func(b *Builder) {
		f := IP4Addr
		if key == unix.NFT_RT_NEXTHOP6 {
			f = IP6Addr
		}
		b.numbers("rt", unix.NFTA_RT_DREG, b.Take(f), unix.NFTA_RT_KEY, key)
	}
}
