package store_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// derived returns the result of Derive, each as "container text", and the containers
// whose texts were made anew.
func derived(tb testing.TB, s *store.Store, run func(testing.TB, *store.Store, func(*store.Tx) error)) (all, made []string) {
	tb.Helper()
	run(tb, s, func(tx *store.Tx) error {
		texts, err := tx.Derive("test", func(a *store.Attachment) []byte {
			made = append(made, a.ContainerID)
			return []byte(a.HostLink)
		})
		for _, d := range texts {
			all = append(all, d.Key.ContainerID+" "+string(d.Text))
		}
		return err
	})
	return all, made
}

func TestDerive(t *testing.T) {
	s := newStore(t)
	if all, _ := derived(t, s, view); all != nil {
		t.Errorf("without a file: %q", all)
	}
	put := func(id, link string) {
		t.Helper()
		a := attachment(key("net", id))
		a.HostLink = link
		update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	}
	expect := func(run func(testing.TB, *store.Store, func(*store.Tx) error), want, wantMade []string) {
		t.Helper()
		all, made := derived(t, s, run)
		if !slices.Equal(all, want) || !slices.Equal(made, wantMade) {
			t.Errorf("derived %q, made %q; want %q, made %q", all, made, want, wantMade)
		}
	}
	put("b", "link1")
	put("d", "link2")
	expect(view, []string{"b link1", "d link2"}, []string{"b", "d"})
	expect(update, []string{"b link1", "d link2"}, []string{"b", "d"})
	expect(update, []string{"b link1", "d link2"}, nil)
	put("a", "link3")
	put("c", "link4")
	put("d", "link5") // of the same length
	expect(view, []string{"a link3", "b link1", "c link4", "d link5"}, []string{"a", "c", "d"})
	expect(update, []string{"a link3", "b link1", "c link4", "d link5"}, []string{"a", "c", "d"})
	update(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.DeleteAttachment(key("net", "a")), tx.DeleteAttachment(key("net", "c")), tx.DeleteAttachment(key("net", "d")))
	})
	expect(update, []string{"b link1"}, nil)
	put("c", "link4") // its earlier text must be gone
	expect(update, []string{"b link1", "c link4"}, []string{"c"})
}

func TestRevision(t *testing.T) {
	s := newStore(t)
	revision := func(run func(testing.TB, *store.Store, func(*store.Tx) error)) (r store.Revision) {
		t.Helper()
		run(t, s, func(tx *store.Tx) (err error) { r, err = tx.Revision(); return err })
		return r
	}
	if r, ok := s.Seen(); ok || revision(view) != (store.Revision{}) {
		t.Errorf("without a file: %v", r)
	}
	first := revision(update)
	if got := revision(view); got != first {
		t.Errorf("after an update of revision %v: %v", first, got)
	}
	if got, ok := s.Seen(); !ok || got != first {
		t.Errorf("seen: %v %v, want %v", got, ok, first)
	}
	second := revision(update)
	if !second.Covers(first) || !second.Covers(second) || first.Covers(second) {
		t.Errorf("%v does not come after %v", second, first)
	}
	if _, err := s.SetAside(t.Context()); err != nil {
		t.Fatal(err)
	}
	if other := revision(update); second.Covers(other) || other.Covers(first) {
		t.Errorf("%v of another file is comparable with %v", other, second)
	}
}

func TestOwners(t *testing.T) {
	s := newStore(t)
	id := store.PoolID{DataDir: "/d", Network: "net"}
	want := map[netip.Addr]store.Key{}
	update(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(id)
		for i, text := range []string{"10.0.0.2", "fd00::7", "10.0.0.9"} {
			a := netip.MustParseAddr(text)
			want[a] = key("net", fmt.Sprintf("c%d", i%2))
			err = errors.Join(err, p.Reserve(store.Lease{Address: a, Owner: want[a], Time: testTime}))
		}
		return err
	})
	view(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(id)
		n := 0
		for a, k := range p.Owners() {
			if n++; want[a] != k {
				t.Errorf("%s is %v's, want %v", a, k, want[a])
			}
		}
		if n != len(want) {
			t.Errorf("%d addresses, want %d", n, len(want))
		}
		return err
	})
}

// BenchmarkDerive reads 250 attachments of 3 kB, one of them new.
func BenchmarkDerive(b *testing.B) {
	s := newStore(b)
	changes := fmt.Sprintf(`["%02800d"]`, 0)
	put := func(id string) {
		a := attachment(key("net", id))
		a.Parts[0].Changes = []byte(changes)
		update(b, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
	}
	for i := range 250 {
		put(fmt.Sprintf("%064d", i))
	}
	n := 0
	for b.Loop() {
		b.StopTimer()
		changes = fmt.Sprintf(`["%02800d"]`, n)
		put(fmt.Sprintf("%064d", n%250))
		n++
		b.StartTimer()
		update(b, s, func(tx *store.Tx) error {
			_, err := tx.Derive("bench", func(*store.Attachment) []byte { return make([]byte, 1000) })
			return err
		})
	}
}
