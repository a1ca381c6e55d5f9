package attachment_test

import (
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// TestSharedConfirmed: after the roles of a list have recorded their shared objects,
// calls for further containers write nothing.
func TestSharedConfirmed(t *testing.T) {
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	wanted := func(subnet string) (s netops.Spec) {
		s.Add(&netops.Element{Shared: true, Set: "masq4", Label: attachment.SharedLabel("pods"), Key: []string{"br0", subnet}})
		return s
	}
	specs := map[string]netops.Spec{"bridge": wanted("10.1.0.0/16"), "portmap": wanted("10.2.0.0/16")}
	isConfirmed := func(tx *store.Tx, role string) bool {
		var names []string
		for _, o := range specs[role].Objects {
			names = append(names, o.String())
		}
		return tx.SharedConfirmed("pods", role, names)
	}
	at := time.Unix(1e9, 0)
	container := func() (updated time.Time, confirmed int) {
		at = at.Add(time.Second)
		err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
			for _, role := range []string{"bridge", "portmap"} {
				if isConfirmed(tx, role) {
					confirmed++
				}
				if err := attachment.PutShared(tx, "pods", role, specs[role], nil, at); err != nil {
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
		return updated, confirmed
	}
	for range 2 { // portmap adds shared objects, so bridge must confirm once more
		container()
	}
	before, _ := container()
	if after, confirmed := container(); !after.Equal(before) || confirmed != 2 {
		t.Errorf("written at %v, before at %v; %d roles have confirmed", after, before, confirmed)
	}
	specs["bridge"] = wanted("10.3.0.0/16")
	if after, confirmed := container(); !after.Equal(at) || confirmed != 0 {
		t.Errorf("a new object was written at %v, with %d roles confirmed", after, confirmed)
	}
	if _, confirmed := container(); confirmed != 2 {
		t.Errorf("%d roles are confirmed after the record was written", confirmed)
	}
	err = h.Store.Update(t.Context(), func(tx *store.Tx) error {
		if err := tx.DeleteNetwork("pods"); err != nil {
			return err
		}
		for _, role := range []string{"bridge", "portmap"} {
			if isConfirmed(tx, role) {
				t.Errorf("%s is confirmed without a record", role)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
