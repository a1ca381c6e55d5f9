package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store"
)

// TestFreeze: the views of a frozen store show its copy and take no lock; changes are made to the file.
func TestFreeze(t *testing.T) {
	o := options(t)
	s, other := store.New(o), store.New(o)
	names := func() (all []string) {
		view(t, s, func(tx *store.Tx) error {
			some, err := tx.Attachments("n")
			for _, a := range some {
				all = append(all, a.ContainerID)
			}
			return err
		})
		return all
	}
	put := func(s *store.Store, id string) {
		update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(attachment(key("n", id))) })
	}
	thaw, err := s.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	thaw() // there is no file
	put(s, "a")
	if thaw, err = s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(other, "b")
	put(s, "c")
	err = other.Update(t.Context(), func(*store.Tx) error {
		if have := names(); !slices.Equal(have, []string{"a"}) {
			t.Errorf("frozen: %q", have)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	thaw()
	if have := names(); !slices.Equal(have, []string{"a", "b", "c"}) {
		t.Errorf("then: %q", have)
	}
}

// TestTurns: two processes that keep the file open see each other's transactions, in
// any order. They leave a sound file, although it has grown and shrunk meanwhile.
func TestTurns(t *testing.T) {
	o := options(t)
	processes := []*store.Store{store.New(o), store.New(o)}
	want := map[string]string{}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 600 {
		s := processes[random.IntN(2)]
		id := fmt.Sprint(random.IntN(40))
		switch random.IntN(4) {
		case 0:
			delete(want, id)
			update(t, s, func(tx *store.Tx) error { return tx.DeleteAttachment(key("n", id)) })
		case 1:
			if err := s.Update(t.Context(), func(tx *store.Tx) error {
				if err := tx.DeleteAttachment(key("n", id)); err != nil {
					return err
				}
				return os.ErrInvalid
			}); err == nil {
				t.Fatal("an error was lost")
			}
		default:
			a := attachment(key("n", id))
			a.Pod = strings.Repeat("p", random.IntN(9000)) + fmt.Sprint(i)
			want[id] = a.Pod
			update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(a) })
		}
		have := map[string]string{}
		view(t, processes[random.IntN(2)], func(tx *store.Tx) error {
			all, err := tx.Attachments("n")
			for _, a := range all {
				have[a.ContainerID] = a.Pod
			}
			return err
		})
		for id, pod := range want {
			if have[id] != pod {
				t.Fatalf("step %d: %s is %.20q, want %.20q", i, id, have[id], pod)
			}
		}
		if len(have) != len(want) {
			t.Fatalf("step %d: %d attachments, want %d", i, len(have), len(want))
		}
	}
	raw(t, processes[0].Path(), func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		return nil
	})
}

// TestIdleIsUnlocked: a file that is kept open between two transactions is not
// locked, and is only one descriptor after many transactions.
func TestIdleIsUnlocked(t *testing.T) {
	o := options(t)
	a, b := store.New(o), store.New(o)
	var open []int
	for range 20 {
		for _, s := range []*store.Store{a, b} {
			update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(attachment(key("n", "c"))) })
			view(t, s, func(*store.Tx) error { return nil })
		}
		open = append(open, descriptors(t, a.Path()))
	}
	if slices.Max(open) > open[0] {
		t.Errorf("descriptors of the file after each round: %v", open)
	}
	if _, err := a.SetAside(t.Context()); err != nil {
		t.Fatal(err)
	}
	view(t, b, func(tx *store.Tx) error {
		if tx.Attached("n") {
			t.Error("a file that was set aside is still read")
		}
		return nil
	})
	if n := descriptors(t, a.Path()); n != 0 {
		t.Errorf("%d descriptors of the file that was set aside", n)
	}
}

// TestBusyAtRest: a call that gives up while its thread still waits for the lock does
// not close the descriptor under the thread, though the file was open before. The
// error names the holder, even if the note was removed.
func TestBusyAtRest(t *testing.T) {
	o := options(t)
	o.LockTimeout = 30 * time.Millisecond
	s, holder := store.New(o), store.New(o)
	for _, each := range []*store.Store{s, holder} {
		update(t, each, func(tx *store.Tx) error { return tx.PutAttachment(attachment(key("n", "c"))) })
	}
	view(t, s, func(*store.Tx) error { return nil })
	if err := os.Remove(s.Path() + ".holder"); err != nil {
		t.Fatal(err)
	}
	update(t, holder, func(*store.Tx) error {
		err := s.View(t.Context(), func(*store.Tx) error { return nil })
		if want := fmt.Sprintf("held by process %d", os.Getpid()); !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
		// Two of the holder, and one of the waiting call.
		if n := descriptors(t, s.Path()); n != 3 {
			t.Errorf("%d descriptors while one waits", n)
		}
		return nil
	})
	o.LockTimeout = time.Minute
	view(t, store.New(o), func(*store.Tx) error { return nil })
}

// TestOtherProgramsFields: fields that a newer program adds to a record between two
// of our own writes stay, whether or not the record is read before the second.
func TestOtherProgramsFields(t *testing.T) {
	s := newStore(t)
	a := attachment(key("n", "c"))
	put := func(tx *store.Tx) error { return tx.PutAttachment(a) }
	update(t, s, put)
	raw(t, s.Path(), func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("attachments"))
		k, v := bucket.Cursor().First()
		return bucket.Put(bytes.Clone(k), append([]byte(`{"newer":true,`), v[1:]...))
	})
	for range 2 {
		a.Pod += "x"
		update(t, s, put)
		update(t, s, func(tx *store.Tx) error {
			if _, err := tx.Attachment(a.Key); err != nil {
				return err
			}
			return put(tx)
		})
	}
	raw(t, s.Path(), func(tx *bolt.Tx) error {
		_, v := tx.Bucket([]byte("attachments")).Cursor().First()
		if !bytes.Contains(v, []byte(`"newer":true`)) || !bytes.Contains(v, []byte(`podxx`)) {
			t.Errorf("the field is lost: %s", v)
		}
		return nil
	})
}

// descriptors counts the descriptors of this process for the file, or for what it was
// renamed to.
func descriptors(t *testing.T, path string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, path) {
			n++
		}
	}
	return n
}
