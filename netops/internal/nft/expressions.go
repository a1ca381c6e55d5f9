package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The methods of Builder append the expressions of a rule (linux/netfilter/nf_tables.h). A register is that from which an expression reads or into
// which it writes.

// Add appends an expression whose attributes fill appends.
func (b *Builder) Add(name string, fill func()) {
	b.Nest(unix.NFTA_LIST_ELEM, func() {
		b.Text(unix.NFTA_EXPR_NAME, name)
		b.Nest(unix.NFTA_EXPR_DATA, fill)
	})
}

// numbers appends an expression of numbers: attributes and their values by turns.
func (b *Builder) numbers(name string, pairs ...uint32) {
	b.Add(name, func() {
		for i := 0; i < len(pairs); i += 2 {
			b.Net32(uint16(pairs[i]), pairs[i+1])
		}
	})
}

// value appends data to compare with or to load.
func (b *Builder) value(kind uint16, data []byte) {
	b.Nest(kind, func() { b.Bytes(unix.NFTA_DATA_VALUE, data) })
}

// Meta loads what the kernel knows about a packet, NFT_META_*.
func (b *Builder) Meta(key, register uint32) {
	b.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_DREG, register)
}

// SetMeta sets it.
func (b *Builder) SetMeta(key, register uint32) {
	b.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_SREG, register)
}

// Ct loads a field of the packet's connection, NFT_CT_*.
func (b *Builder) Ct(key, register uint32) {
	b.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_DREG, register)
}

// SetCt sets one.
func (b *Builder) SetCt(key, register uint32) {
	b.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_SREG, register)
}

// Limit matches some packets a second, and as many at once.
func (b *Builder) Limit(packets uint32) {
	b.Add("limit", func() {
		b.Bytes(unix.NFTA_LIMIT_RATE, binary.BigEndian.AppendUint64(nil, uint64(packets)))
		b.Bytes(unix.NFTA_LIMIT_UNIT, binary.BigEndian.AppendUint64(nil, 1)) // seconds
		b.Net32(unix.NFTA_LIMIT_BURST, packets)
	})
}

// Log passes a packet to the reader of a group of nfnetlink_log.
func (b *Builder) Log(group uint16) {
	b.Add("log", func() { b.Net16(unix.NFTA_LOG_GROUP, group) })
}

// Payload loads bytes of one of a packet's headers, NFT_PAYLOAD_*_HEADER.
func (b *Builder) Payload(base, offset, size, register uint32) {
	b.numbers("payload", unix.NFTA_PAYLOAD_DREG, register, unix.NFTA_PAYLOAD_BASE, base, unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, size)
}

// SetPayload writes bytes of a packet's header. more are pairs that say how its checksum changes.
func (b *Builder) SetPayload(base, offset, size, register uint32, more ...uint32) {
	b.numbers("payload", append([]uint32{
		unix.NFTA_PAYLOAD_SREG, register, unix.NFTA_PAYLOAD_BASE, base, unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, size,
	}, more...)...)
}

// Exthdr loads 1 if the packet has a header or an option of a type, or 0: an extension header with NFT_EXTHDR_OP_IPV6.
func (b *Builder) Exthdr(op uint32, kind uint8, register uint32) {
	b.Add("exthdr", func() {
		b.Net32(unix.NFTA_EXTHDR_DREG, register)
		b.Uint8(unix.NFTA_EXTHDR_TYPE, kind)
		for _, p := range [][2]uint32{{unix.NFTA_EXTHDR_OFFSET, 0}, {unix.NFTA_EXTHDR_LEN, 1}, {unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT}, {unix.NFTA_EXTHDR_OP, op}} {
			b.Net32(uint16(p[0]), p[1])
		}
	})
}

// Fib loads what the kernel's routes say about an address: a NFT_FIB_RESULT_* by NFTA_FIB_F_*.
func (b *Builder) Fib(result, flags, register uint32) {
	b.numbers("fib", unix.NFTA_FIB_DREG, register, unix.NFTA_FIB_RESULT, result, unix.NFTA_FIB_FLAGS, flags)
}

// Compare ends the rule unless a comparison holds, NFT_CMP_*.
func (b *Builder) Compare(op, register uint32, data []byte) {
	b.Add("cmp", func() {
		b.Net32(unix.NFTA_CMP_SREG, register)
		b.Net32(unix.NFTA_CMP_OP, op)
		b.value(unix.NFTA_CMP_DATA, data)
	})
}

// Range ends the rule unless a value is within a range.
func (b *Builder) Range(register uint32, first, last []byte) {
	b.Add("range", func() {
		b.Net32(unix.NFTA_RANGE_SREG, register)
		b.Net32(unix.NFTA_RANGE_OP, unix.NFT_RANGE_EQ)
		b.value(unix.NFTA_RANGE_FROM_DATA, first)
		b.value(unix.NFTA_RANGE_TO_DATA, last)
	})
}

// Mask keeps the bits of a mask, and inverts those of xor, which may be nil.
func (b *Builder) Mask(register uint32, mask, xor []byte) {
	if xor == nil {
		xor = make([]byte, len(mask))
	}
	b.Add("bitwise", func() {
		b.Net32(unix.NFTA_BITWISE_SREG, register)
		b.Net32(unix.NFTA_BITWISE_DREG, register)
		b.Net32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		b.value(unix.NFTA_BITWISE_MASK, mask)
		b.value(unix.NFTA_BITWISE_XOR, xor)
	})
}

// Lookup ends the rule unless a set has the key in the first registers, or, if invert is set, if it has.
func (b *Builder) Lookup(set string, invert bool) {
	b.Add("lookup", func() {
		b.Text(unix.NFTA_LOOKUP_SET, set)
		b.Net32(unix.NFTA_LOOKUP_SREG, FirstRegister)
		if invert {
			b.Net32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

// LookupInto loads the value that a map has for the key in the first registers. NFT_REG_VERDICT takes a verdict.
func (b *Builder) LookupInto(set string, register uint32) {
	b.Add("lookup", func() {
		b.Text(unix.NFTA_LOOKUP_SET, set)
		b.Net32(unix.NFTA_LOOKUP_SREG, FirstRegister)
		b.Net32(unix.NFTA_LOOKUP_DREG, register)
	})
}

// Immediate loads a value.
func (b *Builder) Immediate(register uint32, data []byte) {
	b.Add("immediate", func() {
		b.Net32(unix.NFTA_IMMEDIATE_DREG, register)
		b.value(unix.NFTA_IMMEDIATE_DATA, data)
	})
}

// Verdict ends the rule with a verdict. chain is that of a jump or a goto.
func (b *Builder) Verdict(code int32, chain string) {
	b.Add("immediate", func() {
		b.Net32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b.Nest(unix.NFTA_IMMEDIATE_DATA, func() {
			b.Nest(unix.NFTA_DATA_VERDICT, func() {
				b.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					b.Text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}
