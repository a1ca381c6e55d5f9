package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// OutputLink loads the name of the output device (oifname).
func OutputLink() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: b.Take(IfName)})
	}
}

// Tracked matches if any of the bits is set in a field of the connection tracking
// entry.
func Tracked(key expr.CtKey, bits uint32) Part {
	return func(b *Builder) {
		r := b.Next
		b.Exprs = append(b.Exprs,
			&expr.Ct{Key: key, Register: r},
			&expr.Bitwise{
				SourceRegister: r, DestRegister: r, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: r, Data: make([]byte, 4)},
		)
	}
}

// ToThisNode matches packets to a local address of the node (fib daddr type
// local).
func ToThisNode() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Fib{Register: b.Next, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
		)
	}
}

// OfFamily limits a rule to one address family. Rules that load an address do not
// need it.
func OfFamily(l3 byte) Part { return func(b *Builder) { b.Family = l3 } }

// Next starts a new lookup key: the next field is loaded into the first register.
func Next() Part { return func(b *Builder) { b.Next = FirstRegister } }

// TransportProtocol loads the transport protocol (meta l4proto).
func TransportProtocol() Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: b.Take(InetProto)})
	}
}

// OfProtocol limits a rule to one transport protocol, IPPROTO_*.
func OfProtocol(protocol byte) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs,
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: b.Next},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.Next, Data: []byte{protocol}},
		)
	}
}

// TransportPort loads the destination port (th dport). TCP, UDP and SCTP have it
// at the same offset (RFC 9293 §3.1, RFC 768, RFC 9260 §3.1).
func TransportPort() Part { return Load(expr.PayloadBaseTransportHeader, 2, InetService, 0) }

// SourceIn matches packets whose source address is within a prefix.
func SourceIn(prefix string) Part {
	return Within(prefix, Source4, Source6, expr.CmpOpEq)
}

// VerdictFrom looks up the loaded key in a map and applies the verdict of the
// element.
func VerdictFrom(set *Set) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Lookup{
			SourceRegister: FirstRegister, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set.Name,
		})
		b.Next = FirstRegister
	}
}

// DestinationFrom looks up the loaded key in a map and translates the packet's
// destination to the address and port of the element. If the map's data is only an
// address, the packet keeps its port.
func DestinationFrom(set *Set, l3 byte) Part {
	return func(b *Builder) {
		nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(l3), RegAddrMin: FirstRegister}
		if len(set.Data) > 1 {
			nat.RegProtoMin, nat.Specified = uint32(FirstRegister+set.Data[0].padded()/4), true
		}
		b.Exprs = append(b.Exprs,
			&expr.Lookup{SourceRegister: FirstRegister, DestRegister: FirstRegister, IsDestRegSet: true, SetName: set.Name}, nat)
	}
}

// Goto continues in another chain of the table and does not return to this chain.
func Goto(chain string) Part {
	return func(b *Builder) {
		b.Exprs = append(b.Exprs, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
	}
}

// Within compares an address with a fixed prefix. four and six load the address
// of each family. With CmpOpEq the address must be in the prefix, with CmpOpNeq
// outside it.
func Within(prefix string, four, six func() Part, op expr.CmpOp) Part {
	p := netip.MustParsePrefix(prefix)
	address, f := four(), IP4Addr
	if p.Addr().Is6() {
		address, f = six(), IP6Addr
	}
	return func(b *Builder) {
		r := b.Next
		address(b)
		b.Exprs = append(b.Exprs,
			&expr.Bitwise{
				SourceRegister: r, DestRegister: r, Len: uint32(f.Size()),
				Mask: net.CIDRMask(p.Bits(), 8*f.Size()), Xor: make([]byte, f.Size()),
			},
			&expr.Cmp{Op: op, Register: r, Data: p.Masked().Addr().AsSlice()},
		)
		b.Next = r
	}
}

// SetMarkBit sets one bit of the packet's mark and keeps the others.
func SetMarkBit(bit int) Part {
	return func(b *Builder) {
		mask := binary.NativeEndian.AppendUint32(nil, ^uint32(0)^1<<bit)
		xor := binary.NativeEndian.AppendUint32(nil, 1<<bit)
		b.Exprs = append(b.Exprs,
			&expr.Meta{Key: expr.MetaKeyMARK, Register: b.Next},
			&expr.Bitwise{SourceRegister: b.Next, DestRegister: b.Next, Len: 4, Mask: mask, Xor: xor},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: b.Next},
		)
	}
}

// SetConnectionMarkBit sets one bit of the connection's mark and keeps the others.
func SetConnectionMarkBit(bit int) Part {
	return func(b *Builder) {
		mask := binary.NativeEndian.AppendUint32(nil, ^uint32(0)^1<<bit)
		xor := binary.NativeEndian.AppendUint32(nil, 1<<bit)
		b.Exprs = append(b.Exprs,
			&expr.Ct{Key: expr.CtKeyMARK, Register: b.Next},
			&expr.Bitwise{SourceRegister: b.Next, DestRegister: b.Next, Len: 4, Mask: mask, Xor: xor},
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: b.Next},
		)
	}
}
