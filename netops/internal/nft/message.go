package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Constants of linux/netfilter/nf_tables.h that x/sys/unix does not define.
const (
	nftSetConcat      = 0x80
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
)

const (
	// maxPerMessage limits the number of elements in one message. All elements
	// are inside one attribute, whose length has 16 bits. The length of a larger
	// attribute would be truncated without an error.
	maxPerMessage = 200
	// maxMessageBytes keeps messages with long elements below the same limit.
	maxMessageBytes = 48 << 10
)

// Messages returns the messages that make the feature. The table may exist; sets
// and chains must not exist. If several processes make the feature at once,
// exactly one succeeds and the others get EEXIST.
func (f *Feature) Messages() ([]nlconn.Message, error) {
	table, err := f.Table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	if err != nil {
		return nil, err
	}
	msgs := []nlconn.Message{table}
	for i, s := range f.Sets {
		m, err := s.message(uint32(i + 1))
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	chains, err := f.chainMessages(f.Chains())
	return append(msgs, chains...), err
}

// Message returns a request of one kind (NFT_MSG_*) for the table.
func (t Table) Message(kind, flags uint16) (nlconn.Message, error) {
	return NewMessage(kind, flags, t.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_TABLE_NAME, t.Name)
		return nil
	})
}

// message returns the request that makes the set. The id serves references within
// the transaction. The kernel requires it, although cnibox refers to sets by
// name.
func (s *Set) message(id uint32) (nlconn.Message, error) {
	return NewMessage(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.Table.Family,
		func(ae *netlink.AttributeEncoder) error {
			number, size := concatenate(s.Key)
			ae.String(unix.NFTA_SET_TABLE, s.Table.Name)
			ae.String(unix.NFTA_SET_NAME, s.Name)
			ae.Uint32(unix.NFTA_SET_FLAGS, s.flags())
			ae.Uint32(unix.NFTA_SET_KEY_TYPE, number)
			ae.Uint32(unix.NFTA_SET_KEY_LEN, size)
			if len(s.Data) > 0 {
				number, size := concatenate(s.Data)
				ae.Uint32(unix.NFTA_SET_DATA_TYPE, number)
				ae.Uint32(unix.NFTA_SET_DATA_LEN, size)
			}
			ae.Uint32(unix.NFTA_SET_ID, id)
			if len(s.Key) > 1 {
				ae.Nested(unix.NFTA_SET_DESC, s.describe)
			}
			ae.Bytes(unix.NFTA_SET_USERDATA, slices.Concat(byteOrder(keyOrderTag, s.Key), byteOrder(dataOrderTag, s.Data)))
			return nil
		})
}

// keyOrderTag and dataOrderTag are NFTNL_UDATA_SET_KEYBYTEORDER and
// NFTNL_UDATA_SET_DATABYTEORDER of libnftnl.
const (
	keyOrderTag  = 0
	dataOrderTag = 1
)

// byteOrder returns the user data that specifies the byte order in which nft
// prints values: tag, length, and BYTEORDER_HOST_ENDIAN or BYTEORDER_BIG_ENDIAN
// of nftables' include/datatype.h. A concatenation does not need it.
func byteOrder(tag byte, fields []Field) []byte {
	if len(fields) != 1 {
		return nil
	}
	const host, big = 1, 2
	order := uint32(big)
	if f := fields[0]; f == IfName || f == PacketMark {
		order = host
	}
	return binary.NativeEndian.AppendUint32([]byte{tag, 4}, order)
}

func (s *Set) flags() uint32 {
	var flags uint32
	if s.isInterval() {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if len(s.Key) > 1 {
		flags |= nftSetConcat
	}
	return flags
}

// describe writes the lengths of the key's fields.
func (s *Set) describe(ae *netlink.AttributeEncoder) error {
	ae.Nested(nftaSetDescConcat, func(ae *netlink.AttributeEncoder) error {
		for _, f := range s.Key {
			ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(nftaSetFieldLen, uint32(f.Size()))
				return nil
			})
		}
		return nil
	})
	return nil
}

// concatenate returns nft's type number and the length in bytes of fields. The
// length of a single field is not padded.
func concatenate(fields []Field) (number, size uint32) {
	if len(fields) == 1 {
		return fields[0].number(), uint32(fields[0].Size())
	}
	for _, f := range fields {
		number = number<<nftTypeBits | f.number()
		size += uint32(f.padded())
	}
	return number, size
}

// Message returns the request that makes the chain, without its rules.
func (c *Chain) Message(t Table) (nlconn.Message, error) {
	return NewMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.Family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_CHAIN_TABLE, t.Name)
			ae.String(unix.NFTA_CHAIN_NAME, c.Name)
			if c.Kind == "" {
				return nil
			}
			ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
				ae.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
				return nil
			})
			ae.Uint32(unix.NFTA_CHAIN_POLICY, VerdictAccept)
			ae.String(unix.NFTA_CHAIN_TYPE, c.Kind)
			return nil
		})
}

// Message returns the request that appends the rule to a chain.
func (r Rule) Message(t Table, chain string) (nlconn.Message, error) {
	return NewMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_RULE_TABLE, t.Name)
			ae.String(unix.NFTA_RULE_CHAIN, chain)
			ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) error {
				for _, e := range r.exprs() {
					b, err := expr.Marshal(t.Family, e)
					if err != nil {
						return err
					}
					ae.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
				}
				return nil
			})
			return nil
		})
}

// ElementMessages puts entries into the smallest possible number of messages.
func ElementMessages(kind, flags uint16, entries []*Entry) ([]nlconn.Message, error) {
	var msgs []nlconn.Message
	for len(entries) > 0 {
		n := countFitting(entries)
		m, err := elementMessage(kind, flags, entries[:n])
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
		entries = entries[n:]
	}
	return msgs, nil
}

// countFitting returns the number of leading entries that fit into one message. A
// message holds the entries of one set.
func countFitting(entries []*Entry) int {
	bytes := 0
	for i, n := range entries {
		// 64 is more than the size of the attributes' headers and padding.
		bytes += len(n.Key) + len(n.end) + len(n.data) + len(n.label) + 64
		if i == maxPerMessage || bytes > maxMessageBytes && i > 0 || n.Set != entries[0].Set {
			return i
		}
	}
	return len(entries)
}

func elementMessage(kind, flags uint16, entries []*Entry) (nlconn.Message, error) {
	set := entries[0].Set
	return NewMessage(kind, flags, set.Table.Family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, set.Table.Name)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
		ae.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) error {
			for _, n := range entries {
				ae.Nested(unix.NFTA_LIST_ELEM, n.encode)
			}
			return nil
		})
		return nil
	})
}

// dumpMessage returns the request for all elements of a set.
func (s *Set) dumpMessage() (nlconn.Message, error) {
	return NewMessage(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Table.Family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
			ae.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			return nil
		})
}
