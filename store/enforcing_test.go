package store_test

import (
	"os"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// TestEnforcing: the mark of a node that enforces network policies outlives the loss of node.db and an import, and its times. A damaged keep.db
// of a node with saved policies had it, and that of another node does not keep pods from it. Taking it back twice is no error, and makes no files.
func TestEnforcing(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	want := func(what string, on bool) {
		t.Helper()
		if err := s.Update(ctx, func(*store.Tx) error { return nil }); err != nil {
			t.Fatal(what, err)
		}
		is, err := store.Read(ctx, s, func(tx *store.Tx) (bool, error) { return tx.Enforces(), nil })
		if err != nil || is != on {
			t.Errorf("%s: %v, %v", what, is, err)
		}
	}
	lose := func(path string) {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	set := func(e *store.Enforcing) {
		t.Helper()
		if err := s.SetEnforcing(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	set(nil)
	if _, err := os.Lstat(s.KeepPath()); err == nil {
		t.Error("taking back what is not there makes keep.db")
	}
	want("before", false)
	set(&store.Enforcing{Since: testTime, Known: true, Source: store.PolicySource{Kube: true}})
	set(&store.Enforcing{Since: testTime.Add(time.Hour), Source: store.PolicySource{Dir: "/d"}})
	want("with the mark", true)
	if e, err := store.ReadKeep(ctx, s, (*store.KeepTx).Enforcing); err != nil || !e.Since.Equal(testTime) || !e.Known || e.Source.Kube || e.Source.Dir != "/d" {
		t.Errorf("%+v, %v", e, err)
	}
	lose(s.Path())
	want("after the loss of node.db", true)
	if err := s.Import(ctx, importDump("a"), true); err != nil {
		t.Fatal(err)
	}
	want("after an import", true)
	set(nil)
	want("taken back", false)
	lose(s.Path())
	want("taken back, and a new node.db", false)
	damage := func() {
		t.Helper()
		lose(s.Path())
		if err := os.WriteFile(s.KeepPath(), []byte("no database"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	want("with a damaged keep.db of a node without policies", false)
	if err := os.WriteFile(s.PolicyPath(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	damage()
	want("with a damaged keep.db", true)
}
