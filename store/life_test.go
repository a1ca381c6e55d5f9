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

// Whoever waited for the lock of a file that was removed or replaced meanwhile
// works on the file that stands there now.
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
				err = os.RemoveAll(o.RunDir) // the waiter only reads and makes nothing
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

func TestRefusedPlaces(t *testing.T) {
	cases := map[string]func(t *testing.T, o *store.Options){
		"run dir is a link": func(t *testing.T, o *store.Options) {
			link(t, t.TempDir(), o.RunDir)
		},
		"state dir is a link": func(t *testing.T, o *store.Options) {
			link(t, t.TempDir(), o.StateDir)
		},
		"boot dir is a link": func(t *testing.T, o *store.Options) {
			mkdir(t, o.RunDir, 0o700)
			link(t, t.TempDir(), filepath.Join(o.RunDir, bootA))
		},
		"run dir is a file": func(t *testing.T, o *store.Options) {
			mkdir(t, filepath.Dir(o.RunDir), 0o700)
			if err := os.WriteFile(o.RunDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"run dir for all":         func(t *testing.T, o *store.Options) { mkdir(t, o.RunDir, 0o777) },
		"boot dir for the group":  func(t *testing.T, o *store.Options) { mkdir(t, filepath.Join(o.RunDir, bootA), 0o770) },
		"state dir for the group": func(t *testing.T, o *store.Options) { mkdir(t, o.StateDir, 0o720) },
		"another's run dir":       func(t *testing.T, o *store.Options) { mkdir(t, o.RunDir, 0o700); chown(t, o.RunDir) },
		"another's state dir":     func(t *testing.T, o *store.Options) { mkdir(t, o.StateDir, 0o700); chown(t, o.StateDir) },
		"relative": func(_ *testing.T, o *store.Options) {
			o.RunDir, o.StateDir = "run", "state"
		},
		"boot id goes up": func(_ *testing.T, o *store.Options) { o.BootID = "../../../../etc" },
		"no boot id":      func(_ *testing.T, o *store.Options) { o.BootID = "" },
		"boot id of X":    func(_ *testing.T, o *store.Options) { o.BootID = strings.Replace(bootA, "1", "X", 1) },
		"node.db is a link": func(t *testing.T, o *store.Options) {
			mkdir(t, filepath.Join(o.RunDir, bootA), 0o700)
			link(t, "/etc/passwd", filepath.Join(o.RunDir, bootA, "node.db"))
		},
		"node.db is another's": func(t *testing.T, o *store.Options) {
			update(t, store.New(*o), func(*store.Tx) error { return nil })
			chown(t, filepath.Join(o.RunDir, bootA, "node.db"))
		},
		"node.db for all": func(t *testing.T, o *store.Options) {
			update(t, store.New(*o), func(*store.Tx) error { return nil })
			if err := os.Chmod(filepath.Join(o.RunDir, bootA, "node.db"), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"keep.db is a link": func(t *testing.T, o *store.Options) {
			mkdir(t, o.StateDir, 0o700)
			link(t, "/etc/passwd", filepath.Join(o.StateDir, "keep.db"))
		},
		"keys.lock is a link": func(t *testing.T, o *store.Options) {
			mkdir(t, filepath.Join(o.RunDir, bootA), 0o700)
			link(t, "/etc/passwd", filepath.Join(o.RunDir, bootA, "keys.lock"))
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			prepare(t, &o)
			s := store.New(o)
			var calls map[string]error
			_, _, lock := s.TryLockAttachment(key("net", "c"))
			switch {
			case strings.Contains(name, "state"), strings.Contains(name, "keep"):
				calls = map[string]error{
					"keep view":   s.KeepView(t.Context(), func(*store.KeepTx) error { return nil }),
					"keep update": s.KeepUpdate(t.Context(), func(*store.KeepTx) error { return nil }),
				}
			case strings.Contains(name, "lock"):
				if lock == nil {
					t.Error("locked")
				}
			default:
				calls = map[string]error{
					"view":   s.View(t.Context(), func(*store.Tx) error { return nil }),
					"update": s.Update(t.Context(), func(*store.Tx) error { return nil }),
				}
				if lock == nil && !strings.Contains(name, "node.db") {
					t.Error("locked")
				}
			}
			for call, err := range calls {
				if !errors.Is(err, store.ErrInvalid) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

func mkdir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(to, path)); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, path string) {
	t.Helper()
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

func TestModes(t *testing.T) {
	o := options(t)
	s := store.New(o)
	update(t, s, func(*store.Tx) error { return nil })
	if err := s.KeepUpdate(t.Context(), func(*store.KeepTx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if l, err := s.LockAttachment(t.Context(), key("n", "c")); err != nil {
		t.Fatal(err)
	} else {
		l.Unlock()
	}
	for _, dir := range []string{o.RunDir, o.StateDir} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := d.Info()
			if err != nil {
				return err
			}
			if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; st.Mode().Perm() != want {
				t.Errorf("%s: %v", path, st.Mode())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
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
		_, _, lerr := s.TryLockShared("x", true)
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
