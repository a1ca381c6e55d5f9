package nft

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// nftaSetElemKeyEnd is NFTA_SET_ELEM_KEY_END of linux/netfilter/nf_tables.h.
// x/sys/unix does not define it.
const nftaSetElemKeyEnd = 10

// Entry is an Element in the kernel's form.
type Entry struct {
	Set   *Set
	Key   []byte
	end   []byte // last key of an interval set's element, else nil
	data  []byte // a map's value, else nil
	label string
	// shared is the value of Element.Shared.
	shared bool
	// IsEnd is true for the key behind a range of a set with Ranges.
	IsEnd bool
}

// EntryOf encodes e. The error wraps ErrInvalid and names the invalid field.
func EntryOf(schema Schema, e *Element) (*Entry, error) {
	set := schema.set(e.Set)
	if set == nil {
		return nil, fmt.Errorf("nftables set %q: %w: there is no such set", e.Set, nlconn.ErrInvalid)
	}
	n := &Entry{Set: set, label: CleanLabel(e.Label), shared: e.Shared}
	var err error
	n.Key, n.end, err = encodeFields(set.Key, e.Key)
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w: %w", set, nlconn.ErrInvalid, err)
	}
	if !set.isInterval() {
		n.end = nil
	}
	n.data, _, err = encodeFields(set.Data, e.Value)
	if err != nil {
		return nil, fmt.Errorf("value of %s: %w: %w", set, nlconn.ErrInvalid, err)
	}
	return n, nil
}

// width returns the length of field i of a key or value. In a concatenation each
// field is padded to whole registers. A single field is not padded.
func width(fields []Field, i int) int {
	if len(fields) == 1 {
		return fields[i].Size()
	}
	return fields[i].padded()
}

// encodeFields encodes texts and concatenates the results.
func encodeFields(fields []Field, texts []string) (low, high []byte, err error) {
	if len(fields) != len(texts) {
		return nil, nil, fmt.Errorf("has %d fields, want %d", len(texts), len(fields))
	}
	for i, f := range fields {
		l, h, err := f.encode(texts[i])
		if err != nil {
			return nil, nil, fmt.Errorf("field %d: %w", i+1, err)
		}
		pad := make([]byte, width(fields, i)-f.Size())
		low = append(append(low, l...), pad...)
		high = append(append(high, h...), pad...)
	}
	return low, high, nil
}

func decodeFields(fields []Field, low, high []byte) []string {
	var texts []string
	for i, f := range fields {
		n := width(fields, i)
		if f == Verdict {
			n = len(low) // a verdict is always the only field
		}
		if len(low) < n || len(high) < n {
			return append(texts, "")
		}
		texts = append(texts, f.decode(low[:n], high[:n]))
		low, high = low[n:], high[n:]
	}
	return texts
}

// element is the inverse of EntryOf.
func (n *Entry) element() *Element {
	return &Element{
		Shared: n.shared, Set: n.Set.Name, Label: n.label,
		Key:   decodeFields(n.Set.Key, n.Key, n.last()),
		Value: decodeFields(n.Set.Data, n.data, n.data),
	}
}

// last returns the last key that the entry matches.
func (n *Entry) last() []byte {
	if n.end == nil {
		return n.Key
	}
	return n.end
}

// ID returns what identifies an element among those of all sets of the schema.
func (n *Entry) ID() string { return n.Set.Name + "\x00" + string(n.Key) + string(n.end) }

// Label returns the element's comment.
func (n *Entry) Label() string { return n.label }

// Bare returns an entry with only n's key.
func (n *Entry) Bare() *Entry { return &Entry{Set: n.Set, Key: n.Key, end: n.end} }

// Value returns the value of an entry of a map of one field.
func (n *Entry) Value() string {
	return strings.Join(decodeFields(n.Set.Data, n.data, n.data), "")
}

// Labelled returns a copy of an entry with another label.
func (n *Entry) Labelled(label string) *Entry {
	other := *n
	other.label = CleanLabel(label)
	return &other
}

// With returns a copy of an entry of a map with another value.
func (n *Entry) With(value string) (*Entry, error) {
	data, _, err := encodeFields(n.Set.Data, []string{value})
	other := *n
	other.data = data
	return &other, err
}

// allows reports whether the existing entry have makes adding n unnecessary. It
// refuses an exclusive element without a label, because its owner is unknown.
func (n *Entry) allows(have *Entry) bool {
	own := n.sameKey(have) && n.label == have.label && n.label != ""
	return bytes.Equal(n.data, have.data) && (n.shared || own)
}

// Equal reports whether n and o are the same element, with the same value and label.
func (n *Entry) Equal(o *Entry) bool {
	return n.sameKey(o) && bytes.Equal(n.data, o.data) && n.label == o.label
}

// sameKey reports whether n and o match the same packets.
func (n *Entry) sameKey(o *Entry) bool {
	return bytes.Equal(n.Key, o.Key) && bytes.Equal(n.last(), o.last())
}

// covers reports whether every key of o is also a key of n. It compares keys
// field by field, because each field of an interval key is a separate interval.
func (n *Entry) covers(o *Entry) bool {
	at := 0
	for i := range n.Set.Key {
		to := at + width(n.Set.Key, i)
		if bytes.Compare(n.Key[at:to], o.Key[at:to]) > 0 || bytes.Compare(n.last()[at:to], o.last()[at:to]) < 0 {
			return false
		}
		at = to
	}
	return true
}

// String returns the entry in nft's syntax, for errors: "inet cnibox masq4 { cni0
// . 10.22.0.0/16 }".
func (n *Entry) String() string {
	e := n.element()
	text := strings.Join(e.Key, " . ")
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	return fmt.Sprintf("%s { %s }", n.Set, text)
}

// encode appends the entry as the attributes of an NFTA_LIST_ELEM.
func (n *Entry) encode(b *nlconn.Body) {
	value := func(kind uint16, v []byte) {
		b.Nest(kind, func() { b.Bytes(unix.NFTA_DATA_VALUE, v) })
	}
	value(unix.NFTA_SET_ELEM_KEY, n.Key)
	if n.end != nil {
		value(nftaSetElemKeyEnd, n.end)
	}
	if n.IsEnd {
		b.Net32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	if n.data != nil && n.Set.Data[0] == Verdict {
		b.Nest(unix.NFTA_SET_ELEM_DATA, func() {
			b.Nest(unix.NFTA_DATA_VERDICT, func() {
				b.Bytes(unix.NFTA_VERDICT_CODE, n.data[:4])
				if chain := n.data[4:]; len(chain) > 0 {
					b.Text(unix.NFTA_VERDICT_CHAIN, string(chain))
				}
			})
		})
	} else if n.data != nil {
		value(unix.NFTA_SET_ELEM_DATA, n.data)
	}
	if n.label != "" {
		b.Bytes(unix.NFTA_SET_ELEM_USERDATA, LabelUserData(n.label))
	}
}

// decodeEntries reads the elements from the attributes of one NFT_MSG_NEWSETELEM. It
// omits a catch-all element, which has no key.
func decodeEntries(set *Set, attrs []byte) ([]*Entry, error) {
	elements, err := decodeElements(attrs)
	if err != nil {
		return nil, err
	}
	var entries []*Entry
	for _, e := range elements {
		if e.Key == nil {
			continue
		}
		n := &Entry{Set: set, Key: e.Key, end: e.End, data: e.Data, label: e.Label, IsEnd: e.Flags&unix.NFT_SET_ELEM_INTERVAL_END != 0}
		if size := set.keySize(); len(n.Key) != size || len(n.last()) != size {
			return entries, fmt.Errorf("%s: %w: key of %d bytes", set, nlconn.ErrDamaged, len(n.Key))
		}
		if !set.isInterval() {
			n.end = nil
		}
		entries = append(entries, n)
	}
	return entries, nil
}

// DecodeData reads the value or the verdict of a key or data attribute.
func DecodeData(attrs []byte) ([]byte, error) {
	var data []byte
	err := nlconn.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_DATA_VALUE:
			data = bytes.Clone(v)
		case unix.NFTA_DATA_VERDICT:
			var err error
			data, err = decodeVerdict(v)
			return err
		}
		return nil
	})
	return data, err
}

// decodeVerdict reads the attributes NFTA_VERDICT_*. The result has the form of
// encodeVerdict.
func decodeVerdict(attrs []byte) ([]byte, error) {
	code, err := nlconn.Find(attrs, unix.NFTA_VERDICT_CODE)
	if err != nil {
		return nil, err
	}
	chain, err := nlconn.Find(attrs, unix.NFTA_VERDICT_CHAIN)
	return append(bytes.Clone(code), nlconn.Text(chain)...), err
}
