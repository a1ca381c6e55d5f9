package record_test

import (
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// What the roles of a list have settled stays settled: the next container's call of
// each finds it so, whichever role was last, and writes nothing.
func TestSharedSettled(t *testing.T) {
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	wanted := func(subnet string) (s netops.Spec) {
		s.Add(&netops.Element{Shared: true, Set: "masq4", Label: record.SharedLabel("pods"), Key: []string{"br0", subnet}})
		return s
	}
	specs := map[string]netops.Spec{"bridge": wanted("10.1.0.0/16"), "portmap": wanted("10.2.0.0/16")}
	isSettled := func(tx *store.Tx, role string) bool {
		var names []string
		for _, o := range specs[role].Objects {
			names = append(names, o.String())
		}
		return tx.SharedConfirmed("pods", role, names)
	}
	at := time.Unix(1e9, 0)
	container := func() (updated time.Time, settled int) {
		at = at.Add(time.Second)
		err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
			for _, role := range []string{"bridge", "portmap"} {
				if isSettled(tx, role) {
					settled++
				}
				if err := record.PutShared(tx, "pods", role, specs[role], nil, at); err != nil {
					return err
				}
			}
			rec, err := tx.Network("pods")
			if err == nil {
				updated = rec.Updated
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
	if after, settled := container(); !after.Equal(at) || settled != 0 {
		t.Errorf("what is new was written at %v, with %d roles settled", after, settled)
	}
	if _, settled := container(); settled != 2 {
		t.Errorf("%d roles have settled by the record that was written anew", settled)
	}
	err = h.Store.Update(t.Context(), func(tx *store.Tx) error {
		if err := tx.DeleteNetwork("pods"); err != nil {
			return err
		}
		for _, role := range []string{"bridge", "portmap"} {
			if isSettled(tx, role) {
				t.Errorf("%s is settled with no record", role)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
