package node_test

import (
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// What the roles of a list have settled stays settled: the next container's call of
// each writes nothing, whichever role was last.
func TestSharedSettled(t *testing.T) {
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	wanted := func(subnet string) (s netops.Spec) {
		s.Add(&netops.Element{Shared: true, Set: "masq4", Label: node.SharedLabel("pods"), Key: []string{"br0", subnet}})
		return s
	}
	specs := map[string]netops.Spec{"bridge": wanted("10.1.0.0/16"), "portmap": wanted("10.2.0.0/16")}
	at := time.Unix(1e9, 0)
	container := func() (updated time.Time, settled int) {
		at = at.Add(time.Second)
		err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
			for _, role := range []string{"bridge", "portmap"} {
				if err := node.RecordShared(tx, "pods", role, specs[role], nil, at); err != nil {
					return err
				}
			}
			rec, err := tx.Network("pods")
			if err == nil {
				updated, settled = rec.Updated, len(rec.Settled)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return updated, settled
	}
	for range 2 { // bridge settles once more when portmap has added what is shared
		container()
	}
	before, _ := container()
	if after, settled := container(); !after.Equal(before) || settled != 2 {
		t.Errorf("written again at %v after %v, %d roles have settled", after, before, settled)
	}
	specs["bridge"] = wanted("10.3.0.0/16")
	if after, _ := container(); !after.Equal(at) {
		t.Error("what is new was not written")
	}
}
