package netops

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Parts of linux/netfilter/nf_tables.h that x/sys/unix lacks.
const (
	nftSetConcat      = 0x80
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
)

const (
	// maxPerMessage bounds the elements of one message. All of them are inside
	// one attribute, whose length is 16 bits: more would be cut in silence.
	maxPerMessage = 200
	// maxMessageBytes keeps long elements below that limit too.
	maxMessageBytes = 48 << 10
)

// messages makes the feature: the table if it is absent, all else only if
// absent, so of many processes that try at once exactly one succeeds and the
// others get EEXIST.
func (f *nftFeature) messages() ([]nlconn.Message, error) {
	table, err := f.table.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	if err != nil {
		return nil, err
	}
	msgs := []nlconn.Message{table}
	for i, s := range f.sets {
		m, err := s.message(uint32(i + 1))
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	chains, err := f.chainMessages(f.chains())
	return append(msgs, chains...), err
}

func (t nftTable) message(kind, flags uint16) (nlconn.Message, error) {
	return message(kind, flags, t.family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_TABLE_NAME, t.name)
		return nil
	})
}

// message makes the set. The id is for references within the transaction and
// must be there, though ours go by name.
func (s *nftSet) message(id uint32) (nlconn.Message, error) {
	return message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.table.family,
		func(ae *netlink.AttributeEncoder) error {
			number, size := concatenate(s.key)
			ae.String(unix.NFTA_SET_TABLE, s.table.name)
			ae.String(unix.NFTA_SET_NAME, s.name)
			ae.Uint32(unix.NFTA_SET_FLAGS, s.flags())
			ae.Uint32(unix.NFTA_SET_KEY_TYPE, number)
			ae.Uint32(unix.NFTA_SET_KEY_LEN, size)
			if len(s.data) > 0 {
				number, size := concatenate(s.data)
				ae.Uint32(unix.NFTA_SET_DATA_TYPE, number)
				ae.Uint32(unix.NFTA_SET_DATA_LEN, size)
			}
			ae.Uint32(unix.NFTA_SET_ID, id)
			if len(s.key) > 1 {
				ae.Nested(unix.NFTA_SET_DESC, s.describe)
			}
			ae.Bytes(unix.NFTA_SET_USERDATA, slices.Concat(byteOrder(keyOrderTag, s.key), byteOrder(dataOrderTag, s.data)))
			return nil
		})
}

// NFTNL_UDATA_SET_KEYBYTEORDER and NFTNL_UDATA_SET_DATABYTEORDER of libnftnl.
const (
	keyOrderTag  = 0
	dataOrderTag = 1
)

// byteOrder is the user data that tells nft in which byte order to print
// values: tag, length, BYTEORDER_HOST_ENDIAN or BYTEORDER_BIG_ENDIAN of
// nftables' include/datatype.h. Concatenations need none.
func byteOrder(tag byte, fields []field) []byte {
	if len(fields) != 1 {
		return nil
	}
	const host, big = 1, 2
	order := uint32(big)
	if f := fields[0]; f == ifName || f == packetMark {
		order = host
	}
	return binary.NativeEndian.AppendUint32([]byte{tag, 4}, order)
}

func (s *nftSet) flags() uint32 {
	var flags uint32
	if s.isInterval() {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if len(s.key) > 1 {
		flags |= nftSetConcat
	}
	return flags
}

// describe lists the lengths of the key's fields.
func (s *nftSet) describe(ae *netlink.AttributeEncoder) error {
	ae.Nested(nftaSetDescConcat, func(ae *netlink.AttributeEncoder) error {
		for _, f := range s.key {
			ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(nftaSetFieldLen, uint32(f.size()))
				return nil
			})
		}
		return nil
	})
	return nil
}

// concatenate gives nft's type number and the length in bytes of fields; of a
// single field the length is not padded.
func concatenate(fields []field) (number, size uint32) {
	if len(fields) == 1 {
		return fields[0].number(), uint32(fields[0].size())
	}
	for _, f := range fields {
		number = number<<nftTypeBits | f.number()
		size += uint32(f.padded())
	}
	return number, size
}

func (c *nftChain) message(t nftTable) (nlconn.Message, error) {
	return message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_CHAIN_TABLE, t.name)
			ae.String(unix.NFTA_CHAIN_NAME, c.name)
			if c.kind == "" {
				return nil
			}
			ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(unix.NFTA_HOOK_HOOKNUM, c.hook)
				ae.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
				return nil
			})
			ae.Uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
			ae.String(unix.NFTA_CHAIN_TYPE, c.kind)
			return nil
		})
}

func (r nftRule) message(t nftTable, chain string) (nlconn.Message, error) {
	return message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_RULE_TABLE, t.name)
			ae.String(unix.NFTA_RULE_CHAIN, chain)
			ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) error {
				for _, e := range r.exprs() {
					b, err := expr.Marshal(t.family, e)
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

// elementMessages puts entries into as few messages as the limits allow.
func elementMessages(kind, flags uint16, entries []*entry) ([]nlconn.Message, error) {
	var msgs []nlconn.Message
	for len(entries) > 0 {
		n := fitting(entries)
		m, err := elementMessage(kind, flags, entries[:n])
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
		entries = entries[n:]
	}
	return msgs, nil
}

// fitting is how many of the entries go into one message: all of one set.
func fitting(entries []*entry) int {
	bytes := 0
	for i, n := range entries {
		// 64 is above what the attributes' headers and paddings take.
		bytes += len(n.key) + len(n.end) + len(n.data) + len(n.label) + 64
		if i == maxPerMessage || bytes > maxMessageBytes && i > 0 || n.set != entries[0].set {
			return i
		}
	}
	return len(entries)
}

func elementMessage(kind, flags uint16, entries []*entry) (nlconn.Message, error) {
	set := entries[0].set
	return message(kind, flags, set.table.family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, set.table.name)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set.name)
		ae.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) error {
			for _, n := range entries {
				ae.Nested(unix.NFTA_LIST_ELEM, n.encode)
			}
			return nil
		})
		return nil
	})
}

// dumpMessage asks for all elements of a set.
func (s *nftSet) dumpMessage() (nlconn.Message, error) {
	return message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.table.family,
		func(ae *netlink.AttributeEncoder) error {
			ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, s.table.name)
			ae.String(unix.NFTA_SET_ELEM_LIST_SET, s.name)
			return nil
		})
}
