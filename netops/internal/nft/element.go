package nft

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Element is one element of a set or map.
type Element struct {
	Shared bool `json:"shared,omitempty"`
	// Set names a set of the schema: "masq4", "macguard_pairs", …
	Set string `json:"set"`
	// Key has one text per field of the set's type: ["cni0", "10.22.0.0/16"].
	Key []string `json:"key"`
	// Value has one text per field of a map's data type. It is empty for a set.
	Value []string `json:"value,omitempty"`
	// Label names the owner. It is stored as the element's comment and has at
	// most 120 bytes.
	Label string `json:"label,omitempty"`
	// Standby means that another owner has the key. The element is recorded, and made by
	// Restore when the key is free.
	Standby bool `json:"standby,omitempty"`
	// OrSet and OrKey name an element that CHECK accepts instead.
	OrSet string   `json:"-"`
	OrKey []string `json:"-"`
}

// HeldElement is an element of any set as the kernel reports it. End is the last key of an interval in a set of
// concatenated fields. Data has the form of a set's value or of a verdict.
type HeldElement struct {
	Key, End, Data []byte
	Label          string
	// Flags are NFT_SET_ELEM_*.
	Flags uint32
}

// Elements reads a set of any program.
func Elements(ctx context.Context, c *Client, t Table, set string) ([]HeldElement, error) {
	parts, err := List(ctx, c, (&Set{Table: t, Name: set}).dumpMessage(), func(attrs []byte) ([]HeldElement, bool, error) {
		some, err := decodeElements(attrs)
		return some, true, err
	})
	return slices.Concat(parts...), err
}

// decodeElements reads the attributes of one NFT_MSG_NEWSETELEM.
func decodeElements(attrs []byte) (all []HeldElement, err error) {
	list, err := nlconn.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	if err != nil {
		return nil, err
	}
	err = nlconn.EachAttr(list, func(_ uint16, v []byte) error {
		var e HeldElement
		data := func(to *[]byte) func([]byte) error {
			return func(v []byte) (err error) {
				*to, err = DecodeData(v)
				return err
			}
		}
		err := nlconn.ReadAttrs(v, []nlconn.Attr{
			{Kind: unix.NFTA_SET_ELEM_KEY, At: data(&e.Key)},
			{Kind: nftaSetElemKeyEnd, At: data(&e.End)},
			{Kind: unix.NFTA_SET_ELEM_DATA, At: data(&e.Data)},
			{Kind: unix.NFTA_SET_ELEM_FLAGS, At: (*nlconn.BigEndian32)(&e.Flags)},
			{Kind: unix.NFTA_SET_ELEM_USERDATA, At: func(v []byte) error {
				e.Label = LabelOf(v)
				return nil
			}},
		})
		all = append(all, e)
		return err
	})
	return all, err
}
