package clustertest

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// ranges: a page is replaced only by a writer that has read its last version, and a node is gone only without a
// record.
func ranges(t *testing.T, w *World) {
	open := func(i int) cluster.Registry {
		t.Helper()
		r := w.open(t, nodeName(i))
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	r, other := open(1), open(2)
	ctx := t.Context()
	if raw, version, err := r.ReadPage(ctx, "10-1-2-0"); err != nil || version != "" || raw != nil {
		t.Fatalf("no page: %q, %q, %v", raw, version, err)
	}
	if err := r.WritePage(ctx, "10-1-2-0", []byte("1"), ""); err != nil {
		t.Fatal(err)
	}
	if err := other.WritePage(ctx, "10-1-2-0", []byte("2"), ""); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("made again: %v", err)
	}
	_, old, _ := other.ReadPage(ctx, "10-1-2-0")
	raw, version, err := r.ReadPage(ctx, "10-1-2-0")
	if err != nil || string(raw) != "1" || r.WritePage(ctx, "10-1-2-0", []byte("3"), version) != nil {
		t.Fatalf("%q, %v", raw, err)
	}
	if err := other.WritePage(ctx, "10-1-2-0", []byte("4"), old); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("an old version: %v", err)
	}
	if err := r.WritePage(ctx, "fd00-0000", []byte("5"), ""); err != nil {
		t.Fatal(err)
	}
	var all []string
	if err := other.Pages(ctx, func(name string, page []byte) { all = append(all, name+" "+string(page)) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	if !slices.Equal(all, []string{"10-1-2-0 3", "fd00-0000 5"}) {
		t.Errorf("pages: %q", all)
	}

	// No write of several nodes at once is lost.
	const writers, turns = 5, 10
	var group sync.WaitGroup
	for i := range writers {
		r := open(i + 1)
		group.Go(func() {
			for done := 0; done < turns; {
				raw, version, err := r.ReadPage(ctx, "counter")
				if err == nil {
					n, _ := strconv.Atoi(string(raw))
					err = r.WritePage(ctx, "counter", []byte(strconv.Itoa(n+1)), version)
				}
				if err == nil {
					done++
				} else if !errors.Is(err, cluster.ErrRaced) {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if raw, _, err := r.ReadPage(ctx, "counter"); err != nil || string(raw) != strconv.Itoa(writers*turns) {
		t.Errorf("counted %q, %v", raw, err)
	}

	for range 2 {
		if err := r.Join(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{nodeName(1): false, "node-99": true} {
		if gone, err := other.Gone(ctx, name); err != nil || gone != want {
			t.Errorf("%s is gone: %v, %v", name, gone, err)
		}
	}
	if _, err := other.Gone(ctx, "../x"); !errors.Is(err, cluster.ErrInvalid) {
		t.Errorf("hostile name: %v", err)
	}
}
