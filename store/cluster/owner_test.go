package cluster

import (
	"context"
	"errors"
	"testing"
)

// TestOwner: a write that is tried again is saved once. If it cannot be saved, or the registry has an impossible author, the
// node is published all the same.
func TestOwner(t *testing.T) {
	saves, fault := 0, error(nil)
	w := NewOwner(OwnerOptions{Node: "a", Machine: "m", Boot: "b", Save: func(context.Context, OwnerState) error { saves++; return fault }})
	me, found := &Node{Name: "a"}, Author{Node: "a", Machine: "another", Count: 7, First: 7, ID: "x"}
	one := w.Next(t.Context(), found)
	if two := w.Next(t.Context(), found); one != two || saves != 1 || one.Count != 8 || one.First != 8 {
		t.Errorf("%+v, then %+v; %d saves", one, two, saves)
	}
	w.Published(t.Context(), &Node{Author: one})
	if next := w.Next(t.Context(), one); next.ID == one.ID || next.Count != 9 || next.First != 8 {
		t.Errorf("after %+v came %+v", one, next)
	}
	fault = errors.New("read-only file system")
	w.Published(t.Context(), &Node{Author: one})
	if c := w.Next(t.Context(), one); c != (Author{}) || !w.Current(c) || w.Current(one) != true {
		t.Errorf("not saved: %+v", c)
	}
	fault = nil
	for _, a := range []Author{{Count: 1 << 60, First: 1}, {Count: 1, First: 2}, {Count: 1, ID: string(make([]byte, 300))}} {
		if err := w.Check(&Node{Author: a}, me, false); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
		if next := w.Next(t.Context(), a); next.check() != nil || next.Count > 100 {
			t.Errorf("after %+v comes %+v", a, next)
		}
		if (&Node{Author: a}).Check() == nil {
			t.Errorf("%+v is valid", a)
		}
	}
}
