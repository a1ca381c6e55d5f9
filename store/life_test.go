package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

const bootB = "aaaaaaaa-2222-3333-4444-bbbbbbbbbbbb"

func TestFreshOnceForMany(t *testing.T) {
	o := options(t)
	var fresh atomic.Int32
	o.Fresh = func(_ context.Context, tx *store.Tx) error {
		fresh.Add(1)
		return attach(tx, "rebuilt", 0)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if err := store.New(o).Update(t.Context(), func(tx *store.Tx) error { return attach(tx, strconv.Itoa(i), 0) }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 {
		t.Errorf("fresh ran %d times", fresh.Load())
	}
	checkSound(t, store.New(o), 17)
}

func TestFreshRefuses(t *testing.T) {
	o := options(t)
	refusal := errors.New("links of ours without a record")
	o.Fresh = func(context.Context, *store.Tx) error { return refusal }
	s := store.New(o)
	for range 2 {
		if err := s.Update(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, refusal) {
			t.Errorf("%v", err)
		}
	}
	files, err := os.ReadDir(filepath.Dir(s.Path()))
	if err != nil || len(files) != 0 {
		t.Errorf("left %v, %v", files, err)
	}
	o.Fresh = func(context.Context, *store.Tx) error { panic("mine") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = store.New(o).Update(t.Context(), func(*store.Tx) error { return nil })
	}()
	o.Fresh = nil
	update(t, store.New(o), func(*store.Tx) error { return nil })
}

// TestFreshNeedsKeep: while a call of another program has keep.db, an Update that makes node.db waits for it, and holds no lock of node.db
// meanwhile: the other call may need node.db too.
func TestFreshNeedsKeep(t *testing.T) {
	o := options(t)
	tried := make(chan struct{}, 1)
	o.Fresh = func(ctx context.Context, tx *store.Tx) error {
		err := store.New(o).KeepTryView(ctx, func(*store.KeepTx) error { return nil })
		select {
		case tried <- struct{}{}:
		default:
		}
		return err
	}
	updated := make(chan error, 1)
	err := store.New(o).KeepUpdate(t.Context(), func(*store.KeepTx) error {
		go func() {
			updated <- store.New(o).Update(t.Context(), func(tx *store.Tx) error { return attach(tx, "a", 0) })
		}()
		<-tried
		if _, err := store.New(o).SetAside(t.Context()); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("node.db: %v", err)
		}
		return nil
	})
	if err := errors.Join(err, <-updated); err != nil {
		t.Fatal(err)
	}
	checkSound(t, store.New(o), 1)
}

func TestBootChange(t *testing.T) {
	o, path := filled(t, 5)
	outside := t.TempDir() + "/keep"
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(o.RunDir, "cccccccc-2222-3333-4444-bbbbbbbbbbbb")
	if err := errors.Join(
		os.Mkdir(filepath.Join(o.RunDir, "agent"), 0o700),
		os.Symlink(filepath.Dir(outside), link),
		os.Symlink(filepath.Dir(outside), filepath.Join(filepath.Dir(path), "into")),
	); err != nil {
		t.Fatal(err)
	}
	o.BootID = bootB
	s := store.New(o)
	checkSound(t, s, 0)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a view removed the old boot: %v", err)
	}
	update(t, s, func(tx *store.Tx) error { return attach(tx, "b", 1) })
	checkSound(t, s, 1)
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old boot: %v", err)
	}
	for _, p := range []string{outside, filepath.Join(o.RunDir, "agent")} {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
}

// /run/cnibox vanishes between two calls, and while one waits.
func TestRunDirRemoved(t *testing.T) {
	o, _ := filled(t, 5)
	fresh := 0
	o.Fresh = func(context.Context, *store.Tx) error { fresh++; return nil }
	s := store.New(o)
	if err := os.RemoveAll(o.RunDir); err != nil {
		t.Fatal(err)
	}
	checkSound(t, s, 0)
	update(t, s, func(tx *store.Tx) error { return attach(tx, "a", 1) })
	if fresh != 1 {
		t.Errorf("fresh ran %d times", fresh)
	}
	checkSound(t, s, 1)
}

// A Store that has the run directory open still follows its path: records and locks
// are in the directory that is there now.
func TestRunDirReplaced(t *testing.T) {
	k := key("n", "c")
	replaced := func(t *testing.T) (before, after *store.Store) {
		o := options(t)
		before = store.New(o)
		update(t, before, func(tx *store.Tx) error { return tx.PutAttachment(attachment(k)) })
		if err := os.Rename(o.RunDir, o.RunDir+".old"); err != nil {
			t.Fatal(err)
		}
		after = store.New(o)
		update(t, after, func(*store.Tx) error { return nil })
		return before, after
	}
	t.Run("records", func(t *testing.T) {
		s, _ := replaced(t)
		view(t, s, func(tx *store.Tx) error {
			if tx.Attached("n") {
				t.Error("reads the directory that was moved away")
			}
			return nil
		})
	})
	t.Run("locks", func(t *testing.T) {
		s, other := replaced(t)
		lock, err := other.LockAttachment(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if l, ok, err := s.TryLockAttachment(t.Context(), k); ok || err != nil {
			l.Unlock()
			t.Errorf("locked twice: %v", err)
		}
		lock.Unlock()
		if lock, err = s.LockAttachment(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		lock.Unlock()
	})
}

// A call that waited for the lock of a file that was removed or replaced meanwhile
// uses the file that is there now.
func TestReplacedWhileWaiting(t *testing.T) {
	for _, how := range []string{"removed", "renamed", "dir removed", "dir renamed"} {
		t.Run(how, func(t *testing.T) {
			o, path := filled(t, 5)
			c, in, out := child(t, o, "hold", "x")
			held(t, out)
			waiting := make(chan struct{})
			got := make(chan error)
			o.Probe = func(string) error { close(waiting); return nil }
			s := store.New(o)
			go func() {
				got <- s.View(context.Background(), func(tx *store.Tx) error {
					all, err := tx.Attachments("")
					if len(all) != 0 {
						t.Errorf("%d attachments of the old file", len(all))
					}
					return err
				})
			}()
			<-waiting
			var err error
			switch how {
			case "removed":
				err = os.Remove(path)
			case "renamed":
				err = os.Rename(path, path+".old")
			case "dir removed":
				err = os.RemoveAll(o.RunDir) // the waiter only reads and creates no file
			case "dir renamed":
				err = os.Rename(o.RunDir, o.RunDir+".old")
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = in.Close()
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMarks(t *testing.T) {
	o := options(t)
	s := store.New(o)
	marked := func(want string, found bool) {
		t.Helper()
		err := s.KeepView(t.Context(), func(tx *store.KeepTx) error {
			v, ok, err := tx.Marked("import", "a\x00b")
			if string(v) != want || ok != found {
				t.Errorf("marked %s, %v", v, ok)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	keep := func(fn func(tx *store.KeepTx) error) {
		t.Helper()
		if err := s.KeepUpdate(t.Context(), fn); err != nil {
			t.Error(err)
		}
	}
	marked("", false)
	if _, err := os.Stat(s.KeepPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a view made the file: %v", err)
	}
	for _, v := range []string{`{"at":1}`, `null`} {
		keep(func(tx *store.KeepTx) error { return tx.Mark("import", "a\x00b", json.RawMessage(v)) })
		marked(v, true)
	}
	keep(func(tx *store.KeepTx) error {
		if err := tx.Mark("import", "x", json.RawMessage(`{`)); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("no JSON: %v", err)
		}
		return tx.Mark("import", "a", nil)
	})
	keep(func(tx *store.KeepTx) error { return tx.Unmark("import", "a\x00b") })
	marked("", false)
	o.BootID = bootB
	s = store.New(o)
	err := s.KeepView(t.Context(), func(tx *store.KeepTx) error {
		if v, ok, err := tx.Marked("import", "a"); !ok || string(v) != "null" || err != nil {
			t.Errorf("after a boot: %s %v %v", v, ok, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := os.Truncate(s.KeepPath(), 9000); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepUpdate(t.Context(), func(*store.KeepTx) error { return nil }); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("cut short: %v", err)
	}
}

func TestProbe(t *testing.T) {
	o := options(t)
	var ops []string
	fail := ""
	boom := errors.New("boom")
	o.Probe = func(op string) error {
		ops = append(ops, op)
		if op == fail {
			return boom
		}
		return nil
	}
	s := store.New(o)
	call := func() error {
		ops = nil
		err := s.Update(t.Context(), func(tx *store.Tx) error { return attach(tx, "p", 0) })
		verr := s.View(t.Context(), func(*store.Tx) error { return nil })
		_, _, lerr := s.TryLockShared(t.Context(), "x", true)
		return errors.Join(err, verr, lerr)
	}
	for _, fail = range []string{"update", "commit", "view", "lock"} {
		if err := call(); !errors.Is(err, boom) {
			t.Errorf("%s: %v", fail, err)
		}
		if fail == "commit" {
			fail = ""
			checkSound(t, s, 0)
		}
	}
	fail = "committed"
	if err := call(); err != nil {
		t.Error(err)
	}
	if got := strings.Join(ops, " "); got != "update commit committed view lock" {
		t.Errorf("ops %q", got)
	}
	fail = ""
	checkSound(t, s, 1)
}

func TestContextEnded(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Update(ctx, func(*store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestDefaultOptions(t *testing.T) {
	o, err := store.DefaultOptions()
	if err != nil {
		t.Fatal(err)
	}
	if len(o.BootID) != 36 || o.RunDir != "/run/cnibox" || o.StateDir != "/var/lib/cnibox" || o.LockTimeout != 30*time.Second {
		t.Errorf("%+v", o)
	}
	if s := store.New(o); s.Path() != "/run/cnibox/"+o.BootID+"/node.db" || s.KeepPath() != "/var/lib/cnibox/keep.db" {
		t.Errorf("%s %s", s.Path(), s.KeepPath())
	}
}
