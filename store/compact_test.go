package store_test

import (
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestCompact: a file that large records filled becomes small again when they are
// deleted. Another process that has the file open continues, and the revision grows.
func TestCompact(t *testing.T) {
	o := options(t)
	s, other := store.New(o), store.New(o)
	keep := attachment(key("n", "keep"))
	update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(keep) })
	for i := range 3 { // both parities of the transaction's number
		large := attachment(key("n", "large"))
		large.Pod = strings.Repeat("p", 20<<20)
		update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(large) })
		var before, after store.Revision
		view(t, other, func(tx *store.Tx) (err error) {
			before, err = tx.Revision()
			return err
		})
		for range i + 2 { // a deleted page is free from the next transaction on
			update(t, s, func(tx *store.Tx) error { return tx.DeleteAttachment(key("n", "large")) })
		}
		st, err := os.Stat(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() > 1<<20 {
			t.Errorf("%d bytes after the large record was deleted", st.Size())
		}
		for _, process := range []*store.Store{s, other} {
			view(t, process, func(tx *store.Tx) (err error) {
				if _, err := tx.Attachment(keep.Key); err != nil {
					t.Error(err)
				}
				after, err = tx.Revision()
				return err
			})
			if !after.Covers(before) || after == before {
				t.Errorf("revision %v after %v", after, before)
			}
			update(t, process, func(tx *store.Tx) error { return tx.PutAttachment(keep) })
		}
	}
}
