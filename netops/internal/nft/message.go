package nft

import (
	"encoding/binary"
	"slices"

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
func (f *Feature) Messages() []nlconn.Message {
	msgs := []nlconn.Message{f.Table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)}
	for i, s := range f.Sets {
		msgs = append(msgs, s.message(uint32(i+1)))
	}
	return append(msgs, f.chainMessages(f.Chains())...)
}

// Message returns a request of one kind (NFT_MSG_*) for the table.
func (t Table) Message(kind, flags uint16) nlconn.Message {
	m := Request(kind, flags, t.Family)
	m.Text(unix.NFTA_TABLE_NAME, t.Name)
	return m
}

// ChainMessage returns a request of one kind (NFT_MSG_*) for a chain, or for all
// chains of the table if the name is empty.
func (t Table) ChainMessage(kind, flags uint16, chain string) nlconn.Message {
	m := Request(kind, flags, t.Family)
	m.Text(unix.NFTA_CHAIN_TABLE, t.Name)
	if chain != "" {
		m.Text(unix.NFTA_CHAIN_NAME, chain)
	}
	return m
}

// RuleMessage returns a request of one kind (NFT_MSG_*) for the rules of a chain,
// or of the whole table if the name is empty.
func (t Table) RuleMessage(kind, flags uint16, chain string) nlconn.Message {
	m := Request(kind, flags, t.Family)
	m.Text(unix.NFTA_RULE_TABLE, t.Name)
	if chain != "" {
		m.Text(unix.NFTA_RULE_CHAIN, chain)
	}
	return m
}

// message returns the request that makes the set. The id serves references within
// the transaction. The kernel requires it, although cnibox refers to sets by
// name.
func (s *Set) message(id uint32) nlconn.Message {
	m := Request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.Table.Family)
	number, size := concatenate(s.Key)
	m.Text(unix.NFTA_SET_TABLE, s.Table.Name)
	m.Text(unix.NFTA_SET_NAME, s.Name)
	m.Net32(unix.NFTA_SET_FLAGS, s.flags())
	m.Net32(unix.NFTA_SET_KEY_TYPE, number)
	m.Net32(unix.NFTA_SET_KEY_LEN, size)
	if len(s.Data) > 0 {
		number, size := concatenate(s.Data)
		m.Net32(unix.NFTA_SET_DATA_TYPE, number)
		m.Net32(unix.NFTA_SET_DATA_LEN, size)
	}
	m.Net32(unix.NFTA_SET_ID, id)
	if len(s.Key) > 1 { // the lengths of the key's fields
		m.Nest(unix.NFTA_SET_DESC, func() {
			m.Nest(nftaSetDescConcat, func() {
				for _, f := range s.Key {
					m.Nest(unix.NFTA_LIST_ELEM, func() { m.Net32(nftaSetFieldLen, uint32(f.Size())) })
				}
			})
		})
	}
	m.Bytes(unix.NFTA_SET_USERDATA, slices.Concat(byteOrder(keyOrderTag, s.Key), byteOrder(dataOrderTag, s.Data)))
	return m
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
	if s.isInterval() || s.Ranges {
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

// concatenate returns nft's type number and the length in bytes of fields. The
// length of a single field is not padded.
func concatenate(fields []Field) (number, size uint32) {
	if len(fields) == 1 {
		return fields[0].of().number, uint32(fields[0].Size())
	}
	for _, f := range fields {
		number = number<<nftTypeBits | f.of().number
		size += uint32(f.padded())
	}
	return number, size
}

// Message returns the request that makes the chain, without its rules. A chain of
// the netdev family has a device.
func (c *Chain) Message(t Table) nlconn.Message {
	m := t.ChainMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Name)
	if c.Kind == "" {
		return m
	}
	m.Nest(unix.NFTA_CHAIN_HOOK, func() {
		m.Net32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
		m.Net32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		if c.Device != "" {
			m.Text(unix.NFTA_HOOK_DEV, c.Device)
		}
	})
	policy := uint32(VerdictAccept)
	if c.Drop {
		policy = VerdictDrop
	}
	m.Net32(unix.NFTA_CHAIN_POLICY, policy)
	m.Text(unix.NFTA_CHAIN_TYPE, c.Kind)
	return m
}

// Message returns the request that appends the rule to a chain.
func (r Rule) Message(t Table, chain string) nlconn.Message {
	m := t.RuleMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, chain)
	r.Fill(&m)
	return m
}

// ElementMessages puts entries into the smallest possible number of messages.
func ElementMessages(kind, flags uint16, entries []*Entry) []nlconn.Message {
	var msgs []nlconn.Message
	for len(entries) > 0 {
		n := countFitting(entries)
		msgs = append(msgs, elementMessage(kind, flags, entries[:n]))
		entries = entries[n:]
	}
	return msgs
}

// countFitting returns the number of leading entries that fit into one message. A
// message holds the entries of one set.
func countFitting(entries []*Entry) int {
	bytes, set := 0, entries[0].Set
	for i, n := range entries {
		// 64 is more than the size of the attributes' headers and padding.
		bytes += len(n.Key) + len(n.end) + len(n.data) + len(n.label) + 64
		if i == maxPerMessage || bytes > maxMessageBytes && i > 0 || n.Set.Name != set.Name || n.Set.Table != set.Table {
			return i
		}
	}
	return len(entries)
}

func elementMessage(kind, flags uint16, entries []*Entry) nlconn.Message {
	m := entries[0].Set.request(kind, flags)
	m.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		for _, n := range entries {
			m.Nest(unix.NFTA_LIST_ELEM, func() { n.encode(&m.Body) })
		}
	})
	return m
}

// dumpMessage returns the request for all elements of a set.
func (s *Set) dumpMessage() nlconn.Message {
	return s.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP)
}

// request returns a request for elements of the set.
func (s *Set) request(kind, flags uint16) nlconn.Message {
	m := Request(kind, flags, s.Table.Family)
	m.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	m.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	return m
}
