package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store"
)

// badPlaces spoil a place before it is used.
func badPlaces() map[string]func(t *testing.T, o *store.Options) {
	return map[string]func(t *testing.T, o *store.Options){
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
}

func TestRefusedPlaces(t *testing.T) {
	for name, prepare := range badPlaces() {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			prepare(t, &o)
			s := store.New(o)
			var calls map[string]error
			_, _, lock := s.TryLockAttachment(t.Context(), key("net", "c"))
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

// A file that does not fit on the disk is not damaged: no repair would help.
func TestFullDisk(t *testing.T) {
	o := options(t)
	if err := os.Mkdir(o.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", o.RunDir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.RunDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fill := o.RunDir + "/fill"
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v, want ENOSPC", err)
	}
	err := store.New(o).Update(t.Context(), readAll)
	if !errors.Is(err, unix.ENOSPC) || errors.Is(err, store.ErrDamaged) {
		t.Errorf("error %v, want ENOSPC and not ErrDamaged", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := store.New(o).Update(t.Context(), readAll); err != nil {
		t.Errorf("with space again: %v", err)
	}
}
