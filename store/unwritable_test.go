package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store"
)

// disk mounts a small file system as a store's state directory.
func disk(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// big stores a record that does not fit into a file's free pages.
func big(tx *store.KeepTx) error {
	return tx.Mark("test", "big", []byte(`"`+strings.Repeat("x", 200<<10)+`"`))
}

// A state directory that cannot be written is ErrUnwritable. Its content can be read
// and is not harmed.
func TestUnwritable(t *testing.T) {
	for name, c := range map[string]struct{ off, on func(dir string) error }{
		"read-only": {
			func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
			func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1m") },
		},
		"full": {
			func(dir string) error {
				err := os.WriteFile(filepath.Join(dir, "much"), bytes.Repeat([]byte("x"), 1<<20), 0o600)
				if !errors.Is(err, unix.ENOSPC) {
					return fmt.Errorf("not full: %w", err)
				}
				return nil
			},
			func(dir string) error {
				return errors.Join(os.Remove(filepath.Join(dir, "much")), unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1m"))
			},
		},
	} {
		for _, filled := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, file %v", name, filled), func(t *testing.T) {
				o := options(t)
				disk(t, o.StateDir)
				s := store.New(o)
				mark := func(tx *store.KeepTx) error { return tx.Mark("test", "small", []byte(`1`)) }
				if filled {
					if err := s.KeepUpdate(t.Context(), mark); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.off(o.StateDir); err != nil {
					t.Fatal(err)
				}
				judge := func() {
					t.Helper()
					err := s.KeepView(t.Context(), func(tx *store.KeepTx) error {
						_, ok, err := tx.Marked("test", "small")
						_, grown, err2 := tx.Marked("test", "big")
						if ok != filled || grown {
							t.Errorf("found %v, %v", ok, grown)
						}
						return errors.Join(err, err2)
					})
					if err != nil {
						t.Error(err)
					}
				}
				judge()
				if err := s.KeepUpdate(t.Context(), big); !errors.Is(err, store.ErrUnwritable) {
					t.Errorf("written: %v", err)
				} else if n := strings.Count(err.Error(), store.ErrUnwritable.Error()); n != 1 {
					t.Errorf("said %d times: %v", n, err)
				}
				judge()
				if err := c.on(o.StateDir); err != nil {
					t.Fatal(err)
				}
				judge()
				if err := s.KeepUpdate(t.Context(), big); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A store without a place for its locks runs no transaction and reports why.
func TestUnwritableLocks(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprintf("made %v", made), func(t *testing.T) {
			o := options(t)
			disk(t, o.RunDir)
			s := store.New(o)
			key := store.Key{Network: "n", ContainerID: "c", IfName: "eth0"}
			if made {
				l, err := s.LockAttachment(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				l.Unlock()
			}
			if err := unix.Mount("", o.RunDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			if _, err := s.LockAttachment(t.Context(), key); !errors.Is(err, store.ErrUnwritable) {
				t.Errorf("an attachment's lock: %v", err)
			}
			if _, _, err := s.TryLockShared(t.Context(), "bridge/br0", true); !errors.Is(err, store.ErrUnwritable) {
				t.Errorf("a shared object's lock: %v", err)
			}
		})
	}
}
