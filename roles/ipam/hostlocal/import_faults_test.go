package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/store"
)

// TestImportWaitsForTheReference has the reference's scenario "Lock file and dir": the import waits
// for the reference's lock.
func TestImportWaitsForTheReference(t *testing.T) {
	b := newBed(t)
	dir := b.writeDir(t, "net", nil)
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err = a.Add(ctx, b.Host, request1("one"))
	holder := fmt.Sprintf("held by process %d (", os.Getpid())
	if !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), filepath.Join(dir, "lock")) || !strings.Contains(err.Error(), holder) {
		t.Errorf("while it is locked: %v", err)
	}
	b.releaseAll(t, a, "busy")
	// The import reads what the reference writes before it releases the lock.
	done := make(chan []string)
	go func() { done <- b.add(t, a, request1("one")) }()
	if err := os.WriteFile(filepath.Join(dir, "10.1.2.2"), []byte("late\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, <-done, "10.1.2.3")
}

// releaseAll runs DEL and GC, which release addresses although the directory has become unusable,
// and log the reason why leases may be missing.
func (b *bed) releaseAll(t *testing.T, a *handler, why string) {
	t.Helper()
	lease := store.Lease{Owner: store.Key{Network: "net", ContainerID: "before", IfName: "eth0"}}
	for verb, leave := range map[string]func(context.Context, *roles.Host, *roles.Request) error{"DEL": a.Del, "GC": a.GC} {
		err := b.Store.Update(context.Background(), func(tx *store.Tx) error {
			pool, err := tx.Pool(a.ID("net"))
			lease.Address = netip.MustParseAddr("10.1.2.200")
			return errors.Join(err, pool.Reserve(lease))
		})
		if err != nil {
			t.Fatal(err)
		}
		b.log.Reset()
		req := request1("before")
		req.Valid = []roles.AttachmentID{}
		if err := leave(context.Background(), b.Host, req); err != nil {
			t.Error(err)
		}
		expect(t, b.leases(t))
		// DEL of a lease without a file does not need the directory.
		if log := b.log.String(); (verb == "GC" || a.Files == nil) && !strings.Contains(log, why) {
			t.Errorf("log: %s", log)
		}
	}
}

// TestDamagedMarks: if the record of an import cannot be read, ADD fails with the reason, and
// addresses can still be released.
func TestDamagedMarks(t *testing.T) {
	b := newBed(t)
	b.writeDir(t, "net", nil)
	if err := os.WriteFile(b.Store.KeepPath(), bytes.Repeat([]byte("damaged "), 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24", "mirror": false}`)
	if err := b.addFails(t, a, request1("one")); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("ADD: %v", err)
	}
	b.releaseAll(t, a, "damaged state file")
}

func TestImportRefusals(t *testing.T) {
	cases := map[string]func(t *testing.T, b *bed){
		"a link as directory": func(t *testing.T, b *bed) {
			t.Helper()
			real := b.writeDir(t, "elsewhere", map[string]string{"10.1.2.2": "one\r\neth0"})
			if err := os.Symlink(real, filepath.Join(b.dataDir(), "net")); err != nil {
				t.Fatal(err)
			}
		},
		"a file as directory": func(t *testing.T, b *bed) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(b.dataDir(), "net"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a link as lock": func(t *testing.T, b *bed) {
			t.Helper()
			lock := filepath.Join(b.writeDir(t, "net", nil), "lock")
			if err := errors.Join(os.Remove(lock), os.Symlink("/etc/passwd", lock)); err != nil {
				t.Fatal(err)
			}
		},
		"a pipe as lock": func(t *testing.T, b *bed) {
			t.Helper()
			lock := filepath.Join(b.writeDir(t, "net", nil), "lock")
			if err := os.Remove(lock); err != nil {
				t.Fatal(err)
			}
			mkfifo(t, lock)
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			if err := os.MkdirAll(b.dataDir(), 0o755); err != nil {
				t.Fatal(err)
			}
			prepare(t, b)
			a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
			if err := b.addFails(t, a, request1("one")); !errors.Is(err, leasefiles.ErrDirectory) {
				t.Errorf("ADD: %v", err)
			}
			b.releaseAll(t, a, "unusable host-local directory")
			err := a.Status(context.Background(), b.Host, request1(""))
			if !errors.Is(err, roles.ErrNotAvailable) || !errors.Is(err, leasefiles.ErrDirectory) {
				t.Errorf("STATUS: %v", err)
			}
		})
	}
}

func TestImportOfNothing(t *testing.T) {
	b := newBed(t)
	if _, err := leasefiles.Import(context.Background(), b.Host, b.dataDir(), "net", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	for _, network := range []string{"..", ".", "", "a/b", "../networks/net", "a\x00b"} {
		if _, err := leasefiles.Import(context.Background(), b.Host, b.dataDir(), network, false); err == nil {
			t.Errorf("network %q: imported", network)
		}
		if err := leasefiles.Importable(context.Background(), b.Host, store.PoolID{DataDir: b.dataDir(), Network: network}); err != nil {
			t.Errorf("network %q: %v", network, err)
		}
	}
	a := b.handlerFor(t, `{"subnet": "10.1.2.0/24"}`)
	long := request1("one")
	long.Network = strings.Repeat("n", 10_000)
	b.add(t, a, long)
}
