package netops

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// NFTA_SET_ELEM_KEY_END of linux/netfilter/nf_tables.h, which x/sys/unix lacks.
const nftaSetElemKeyEnd = 10

// entry is an Element in the kernel's form.
type entry struct {
	set   *nftSet
	key   []byte
	end   []byte // last key of an interval set's element, else nil
	data  []byte // a map's value, else nil
	label string
	// shared is the Element's.
	shared bool
}

// entryOf encodes e. The error wraps ErrInvalid and names what is wrong.
func entryOf(schema nftSchema, e *Element) (*entry, error) {
	set := schema.set(e.Set)
	if set == nil {
		return nil, fmt.Errorf("nftables set %q: %w: there is no such set", e.Set, ErrInvalid)
	}
	n := &entry{set: set, label: cleanLabel(e.Label), shared: e.Shared}
	var err error
	if n.key, n.end, err = encodeFields(set.key, e.Key); err != nil {
		return nil, fmt.Errorf("key of %s: %w: %w", set, ErrInvalid, err)
	}
	if !set.isInterval() {
		n.end = nil
	}
	if n.data, _, err = encodeFields(set.data, e.Value); err != nil {
		return nil, fmt.Errorf("value of %s: %w: %w", set, ErrInvalid, err)
	}
	return n, nil
}

// width is the length of one of the fields of a key or value: several are
// each padded to registers, one alone is not.
func width(fields []field, i int) int {
	if len(fields) == 1 {
		return fields[i].size()
	}
	return fields[i].padded()
}

// encodeFields encodes texts one after the other.
func encodeFields(fields []field, texts []string) (low, high []byte, err error) {
	if len(fields) != len(texts) {
		return nil, nil, fmt.Errorf("has %d fields, want %d", len(texts), len(fields))
	}
	for i, f := range fields {
		l, h, err := f.encode(texts[i])
		if err != nil {
			return nil, nil, fmt.Errorf("field %d: %w", i+1, err)
		}
		pad := make([]byte, width(fields, i)-f.size())
		low = append(append(low, l...), pad...)
		high = append(append(high, h...), pad...)
	}
	return low, high, nil
}

func decodeFields(fields []field, low, high []byte) []string {
	var texts []string
	for i, f := range fields {
		n := width(fields, i)
		if f == verdict {
			n = len(low) // always alone
		}
		if len(low) < n || len(high) < n {
			return append(texts, "")
		}
		texts = append(texts, f.decode(low[:n], high[:n]))
		low, high = low[n:], high[n:]
	}
	return texts
}

// element is the inverse of entryOf.
func (n *entry) element() *Element {
	return &Element{
		Shared: n.shared, Set: n.set.name, Label: n.label,
		Key:   decodeFields(n.set.key, n.key, n.last()),
		Value: decodeFields(n.set.data, n.data, n.data),
	}
}

// last is the last key that the entry matches.
func (n *entry) last() []byte {
	if n.end == nil {
		return n.key
	}
	return n.end
}

// bare is the entry's key alone.
func (n *entry) bare() *entry { return &entry{set: n.set, key: n.key, end: n.end} }

// allows tells whether have, in the place of n, leaves nothing to do. Without
// a label nobody can tell whose an exclusive element is.
func (n *entry) allows(have *entry) bool {
	own := n.sameKey(have) && n.label == have.label && n.label != ""
	return bytes.Equal(n.data, have.data) && (n.shared || own)
}

// sameKey tells whether both match the same packets.
func (n *entry) sameKey(o *entry) bool {
	return bytes.Equal(n.key, o.key) && bytes.Equal(n.last(), o.last())
}

// covers tells whether every key of o is one of n. Keys are compared field by
// field, since each field of an interval is an interval of its own.
func (n *entry) covers(o *entry) bool {
	at := 0
	for i := range n.set.key {
		to := at + width(n.set.key, i)
		if bytes.Compare(n.key[at:to], o.key[at:to]) > 0 || bytes.Compare(n.last()[at:to], o.last()[at:to]) < 0 {
			return false
		}
		at = to
	}
	return true
}

// String is the entry in nft's manner, for errors: "inet cnibox masq4 { cni0 . 10.22.0.0/16 }".
func (n *entry) String() string {
	e := n.element()
	text := strings.Join(e.Key, " . ")
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	return fmt.Sprintf("%s { %s }", n.set, text)
}

// encode writes the entry as the attributes of an NFTA_LIST_ELEM.
func (n *entry) encode(ae *netlink.AttributeEncoder) error {
	value := func(b []byte) func(*netlink.AttributeEncoder) error {
		return func(ae *netlink.AttributeEncoder) error {
			ae.Bytes(unix.NFTA_DATA_VALUE, b)
			return nil
		}
	}
	ae.Nested(unix.NFTA_SET_ELEM_KEY, value(n.key))
	if n.end != nil {
		ae.Nested(nftaSetElemKeyEnd, value(n.end))
	}
	if n.data != nil {
		if n.set.data[0] == verdict {
			ae.Nested(unix.NFTA_SET_ELEM_DATA, n.encodeVerdict)
		} else {
			ae.Nested(unix.NFTA_SET_ELEM_DATA, value(n.data))
		}
	}
	if n.label != "" {
		ae.Bytes(unix.NFTA_SET_ELEM_USERDATA, labelUserData(n.label))
	}
	return nil
}

func (n *entry) encodeVerdict(ae *netlink.AttributeEncoder) error {
	ae.Nested(unix.NFTA_DATA_VERDICT, func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(unix.NFTA_VERDICT_CODE, n.data[:4])
		if chain := n.data[4:]; len(chain) > 0 {
			ae.String(unix.NFTA_VERDICT_CHAIN, string(chain))
		}
		return nil
	})
	return nil
}

// decodeEntries reads the elements of one NFT_MSG_NEWSETELEM's attributes.
func decodeEntries(set *nftSet, attrs []byte) ([]*entry, error) {
	var entries []*entry
	err := eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return eachAttr(ad.Bytes(), func(ad *netlink.AttributeDecoder) error {
			n, err := decodeEntry(set, ad.Bytes())
			if n != nil {
				entries = append(entries, n)
			}
			return err
		})
	})
	return entries, err
}

// decodeEntry reads one element; a catch-all element, which has no key, is nil.
func decodeEntry(set *nftSet, attrs []byte) (*entry, error) {
	n := &entry{set: set}
	err := eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		var err error
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			n.key, err = decodeData(ad.Bytes())
		case nftaSetElemKeyEnd:
			n.end, err = decodeData(ad.Bytes())
		case unix.NFTA_SET_ELEM_DATA:
			n.data, err = decodeData(ad.Bytes())
		case unix.NFTA_SET_ELEM_USERDATA:
			n.label = labelOf(ad.Bytes())
		}
		return err
	})
	if err != nil || n.key == nil {
		return nil, err
	}
	if size := set.keySize(); len(n.key) != size || len(n.last()) != size {
		return nil, fmt.Errorf("%s: %w: key of %d bytes", set, nlconn.ErrDamaged, len(n.key))
	}
	if !set.isInterval() {
		n.end = nil
	}
	return n, nil
}

// decodeData reads the value or verdict of a key or data attribute.
func decodeData(attrs []byte) ([]byte, error) {
	var data []byte
	err := eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			data = bytes.Clone(ad.Bytes())
		case unix.NFTA_DATA_VERDICT:
			var code, chain []byte
			err := eachAttr(ad.Bytes(), func(ad *netlink.AttributeDecoder) error {
				switch ad.Type() {
				case unix.NFTA_VERDICT_CODE:
					code = ad.Bytes()
				case unix.NFTA_VERDICT_CHAIN:
					chain = ad.Bytes()
				}
				return nil
			})
			data = append(bytes.Clone(code), nlconn.UntilNUL(chain)...)
			return err
		}
		return nil
	})
	return data, err
}

// eachAttr calls fn for every attribute in b.
func eachAttr(b []byte, fn func(*netlink.AttributeDecoder) error) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return fmt.Errorf("%w: %w", nlconn.ErrDamaged, err)
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if err := fn(ad); err != nil {
			return err
		}
	}
	if err := ad.Err(); err != nil {
		return fmt.Errorf("%w: %w", nlconn.ErrDamaged, err)
	}
	return nil
}
