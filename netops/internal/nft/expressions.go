package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Expressions appends the expressions of a rule (linux/netfilter/nf_tables.h). A register is that from which an expression reads or into
// which it writes.
type Expressions struct{ *nlconn.Body }

// Add appends an expression whose attributes fill appends.
func (e Expressions) Add(name string, fill func()) {
	e.Nest(unix.NFTA_LIST_ELEM, func() {
		e.Text(unix.NFTA_EXPR_NAME, name)
		e.Nest(unix.NFTA_EXPR_DATA, fill)
	})
}

// numbers appends an expression of numbers: attributes and their values by turns.
func (e Expressions) numbers(name string, pairs ...uint32) {
	e.Add(name, func() {
		for i := 0; i < len(pairs); i += 2 {
			e.Net32(uint16(pairs[i]), pairs[i+1])
		}
	})
}

// value appends data to compare with or to load.
func (e Expressions) value(kind uint16, data []byte) {
	e.Nest(kind, func() { e.Bytes(unix.NFTA_DATA_VALUE, data) })
}

// Meta loads what the kernel knows about a packet, NFT_META_*.
func (e Expressions) Meta(key, register uint32) {
	e.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_DREG, register)
}

// SetMeta sets it.
func (e Expressions) SetMeta(key, register uint32) {
	e.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_SREG, register)
}

// Ct loads a field of the packet's connection, NFT_CT_*.
func (e Expressions) Ct(key, register uint32) {
	e.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_DREG, register)
}

// SetCt sets one.
func (e Expressions) SetCt(key, register uint32) {
	e.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_SREG, register)
}

// Limit matches some packets a second, and as many at once.
func (e Expressions) Limit(packets uint32) {
	e.Add("limit", func() {
		e.Bytes(unix.NFTA_LIMIT_RATE, binary.BigEndian.AppendUint64(nil, uint64(packets)))
		e.Bytes(unix.NFTA_LIMIT_UNIT, binary.BigEndian.AppendUint64(nil, 1)) // seconds
		e.Net32(unix.NFTA_LIMIT_BURST, packets)
	})
}

// Log passes a packet to the reader of a group of nfnetlink_log.
func (e Expressions) Log(group uint16) {
	e.Add("log", func() { e.Net16(unix.NFTA_LOG_GROUP, group) })
}

// Payload loads bytes of one of a packet's headers, NFT_PAYLOAD_*_HEADER.
func (e Expressions) Payload(base, offset, size, register uint32) {
	e.numbers("payload", unix.NFTA_PAYLOAD_DREG, register, unix.NFTA_PAYLOAD_BASE, base, unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, size)
}

// SetPayload writes bytes of a packet's header. more are pairs that say how its checksum changes.
func (e Expressions) SetPayload(base, offset, size, register uint32, more ...uint32) {
	e.numbers("payload", append([]uint32{
		unix.NFTA_PAYLOAD_SREG, register, unix.NFTA_PAYLOAD_BASE, base, unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, size,
	}, more...)...)
}

// Exthdr loads 1 if the packet has a header or an option of a type, or 0: an extension header with NFT_EXTHDR_OP_IPV6.
func (e Expressions) Exthdr(op uint32, kind uint8, register uint32) {
	e.Add("exthdr", func() {
		e.Net32(unix.NFTA_EXTHDR_DREG, register)
		e.Uint8(unix.NFTA_EXTHDR_TYPE, kind)
		for _, p := range [][2]uint32{{unix.NFTA_EXTHDR_OFFSET, 0}, {unix.NFTA_EXTHDR_LEN, 1}, {unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT}, {unix.NFTA_EXTHDR_OP, op}} {
			e.Net32(uint16(p[0]), p[1])
		}
	})
}

// Fib loads what the kernel's routes say about an address: a NFT_FIB_RESULT_* by NFTA_FIB_F_*.
func (e Expressions) Fib(result, flags, register uint32) {
	e.numbers("fib", unix.NFTA_FIB_DREG, register, unix.NFTA_FIB_RESULT, result, unix.NFTA_FIB_FLAGS, flags)
}

// Compare ends the rule unless a comparison holds, NFT_CMP_*.
func (e Expressions) Compare(op, register uint32, data []byte) {
	e.Add("cmp", func() {
		e.Net32(unix.NFTA_CMP_SREG, register)
		e.Net32(unix.NFTA_CMP_OP, op)
		e.value(unix.NFTA_CMP_DATA, data)
	})
}

// Range ends the rule unless a value is within a range.
func (e Expressions) Range(register uint32, first, last []byte) {
	e.Add("range", func() {
		e.Net32(unix.NFTA_RANGE_SREG, register)
		e.Net32(unix.NFTA_RANGE_OP, unix.NFT_RANGE_EQ)
		e.value(unix.NFTA_RANGE_FROM_DATA, first)
		e.value(unix.NFTA_RANGE_TO_DATA, last)
	})
}

// Mask keeps the bits of a mask, and inverts those of xor, which may be nil.
func (e Expressions) Mask(register uint32, mask, xor []byte) {
	if xor == nil {
		xor = make([]byte, len(mask))
	}
	e.Add("bitwise", func() {
		e.Net32(unix.NFTA_BITWISE_SREG, register)
		e.Net32(unix.NFTA_BITWISE_DREG, register)
		e.Net32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		e.value(unix.NFTA_BITWISE_MASK, mask)
		e.value(unix.NFTA_BITWISE_XOR, xor)
	})
}

// Lookup ends the rule unless a set has the key in the first registers, or, if invert is set, if it has.
func (e Expressions) Lookup(set string, invert bool) {
	e.Add("lookup", func() {
		e.Text(unix.NFTA_LOOKUP_SET, set)
		e.Net32(unix.NFTA_LOOKUP_SREG, FirstRegister)
		if invert {
			e.Net32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

// LookupInto loads the value that a map has for the key in the first registers. NFT_REG_VERDICT takes a verdict.
func (e Expressions) LookupInto(set string, register uint32) {
	e.Add("lookup", func() {
		e.Text(unix.NFTA_LOOKUP_SET, set)
		e.Net32(unix.NFTA_LOOKUP_SREG, FirstRegister)
		e.Net32(unix.NFTA_LOOKUP_DREG, register)
	})
}

// Immediate loads a value.
func (e Expressions) Immediate(register uint32, data []byte) {
	e.Add("immediate", func() {
		e.Net32(unix.NFTA_IMMEDIATE_DREG, register)
		e.value(unix.NFTA_IMMEDIATE_DATA, data)
	})
}

// Verdict ends the rule with a verdict. chain is that of a jump or a goto.
func (e Expressions) Verdict(code int32, chain string) {
	e.Add("immediate", func() {
		e.Net32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.Nest(unix.NFTA_IMMEDIATE_DATA, func() {
			e.Nest(unix.NFTA_DATA_VERDICT, func() {
				e.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					e.Text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}

// Counter counts the packets that reach it.
func (e Expressions) Counter() { e.Add("counter", func() {}) }
