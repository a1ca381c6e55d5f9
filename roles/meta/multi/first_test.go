package multi_test

import (
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestGC: the runtime's list has eth0 only. Every network gets its own list. Without a list nothing
// changes.
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
