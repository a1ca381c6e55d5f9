package clustertest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// ranges: the pages are a Collection, and a node is gone only without a record.
func ranges(t *testing.T, w *World) {
	open := func(i int) cluster.Registry {
		t.Helper()
		r := w.open(t, nodeName(i))
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	r, other := open(1), open(2)
	ctx := t.Context()
	collection(t, r.Pages(), other.Pages())
	writers(t, func(i int) cluster.Collection { return open(i).Pages() })
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

// collection: a text is replaced only by a writer that has read its last version. Both are the same empty collection as
// two nodes open it.
func collection(t *testing.T, c, other cluster.Collection) {
	ctx := t.Context()
	if text, version, err := c.Read(ctx, "10-1-2-0"); err != nil || version != "" || text != nil {
		t.Fatalf("no text: %q, %q, %v", text, version, err)
	}
	old, err := c.Write(ctx, "10-1-2-0", []byte("1"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Write(ctx, "10-1-2-0", []byte("2"), ""); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("made again: %v", err)
	}
	if text, version, err := other.Read(ctx, "10-1-2-0"); err != nil || string(text) != "1" || version != old {
		t.Errorf("%q, version %q after the write returned %q, %v", text, version, old, err)
	}
	last, err := c.Write(ctx, "10-1-2-0", []byte("3"), old)
	if err != nil || last == old {
		t.Fatalf("version %q after %q, %v", last, old, err)
	}
	if _, err := other.Write(ctx, "10-1-2-0", []byte("4"), old); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("an old version: %v", err)
	}
	next, err := c.Write(ctx, "fd00-0000", []byte("5"), "")
	if err != nil {
		t.Fatal(err)
	}
	listed(t, other, "10-1-2-0 3 "+last, "fd00-0000 5 "+next)
	for _, name := range []string{"", ".", "../x", "a/b", "x\n", "-a", strings.Repeat("a", 300)} {
		if _, _, err := c.Read(ctx, name); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("read hostile name %q: %v", name, err)
		}
		if _, err := c.Write(ctx, name, []byte("6"), ""); !errors.Is(err, cluster.ErrInvalid) {
			t.Errorf("write hostile name %q: %v", name, err)
		}
	}
	_, err = c.Write(ctx, "fd00-0000", nil, next)
	if errors.Is(err, errors.ErrUnsupported) {
		listed(t, other, "10-1-2-0 3 "+last, "fd00-0000 5 "+next)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Write(ctx, "10-1-2-0", nil, old); !errors.Is(err, cluster.ErrRaced) {
		t.Errorf("an old version deleted: %v", err)
	}
	listed(t, other, "10-1-2-0 3 "+last)
}

// listed checks the names, texts and versions of a collection.
func listed(t *testing.T, c cluster.Collection, want ...string) {
	t.Helper()
	var all []string
	err := c.List(t.Context(), func(name string, text []byte, version string) { all = append(all, name+" "+string(text)+" "+version) })
	slices.Sort(all)
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("listed %q, not %q: %v", all, want, err)
	}
}

// writers: no write of several nodes at once is lost.
func writers(t *testing.T, open func(i int) cluster.Collection) {
	ctx := t.Context()
	const writers, turns = 5, 10
	var group sync.WaitGroup
	for i := range writers {
		c := open(i + 1)
		group.Go(func() {
			for done := 0; done < turns; {
				text, version, err := c.Read(ctx, "counter")
				if err == nil {
					n, _ := strconv.Atoi(string(text))
					_, err = c.Write(ctx, "counter", []byte(strconv.Itoa(n+1)), version)
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
	if text, _, err := open(1).Read(ctx, "counter"); err != nil || string(text) != strconv.Itoa(writers*turns) {
		t.Errorf("counted %q, %v", text, err)
	}
}
