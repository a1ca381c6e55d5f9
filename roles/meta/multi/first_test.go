package multi_test

import (
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestFirstOfBoot creates the state file while another call writes to keep.db, as after a boot when
// all pods start at once.
func TestFirstOfBoot(t *testing.T) {
	w := newWorld(t)
	first := w.call("ADD")
	first.Type, first.Conf = "ptp", `{"cniVersion":"1.1.0",`+netC[1:]
	err := w.host().Store.KeepUpdate(t.Context(), func(*store.KeepTx) error {
		w.OK(first)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	first.Verb = "DEL"
	w.OK(first)
}
