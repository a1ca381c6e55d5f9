package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Names of the files in their directories.
const (
	nodeName = "node.db"
	keepName = "keep.db"
	lockName = "keys.lock"
)

// Options of a Store. The zero value is not usable; see DefaultOptions.
type Options struct {
	// RunDir holds what dies with the boot: RunDir/<boot id>/node.db.
	RunDir string
	// StateDir holds keep.db.
	StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// LockTimeout bounds every wait for a lock.
	LockTimeout time.Duration
	// Role is written beside a held lock, so that a waiter can name the holder.
	Role string
	// Program is the binary's version; a new file records who made it.
	Program string
	// Fresh is called in the transaction that makes a new node.db, before
	// anything else is stored: it rebuilds from the kernel, or refuses, and then
	// no file is left. It must not call the Store, only tx.
	Fresh func(ctx context.Context, tx *Tx) error
	// Now is the clock; nil for the machine's.
	Now func() time.Time
	// Waited is told of every wait for a lock that was another's, whether or not it was
	// to be had; nil for nobody. What is a file's path or the name of the lock.
	Waited func(what string, d time.Duration)
	// Probe sees every transaction and lock; tests make the n-th one fail. The
	// ops are "view", "update", "keep view" and "keep update" before a file is
	// opened, "commit" and "keep commit" before the changes are written,
	// "committed" and "keep committed" after it (an error is ignored then:
	// nothing fails there), and "lock" before a lock is tried.
	Probe func(op string) error
}

// DefaultOptions are the options of a real node: /run/cnibox, /var/lib/cnibox,
// the kernel's boot id and waits of at most 30 s. The environment is not read.
func DefaultOptions() (Options, error) {
	id, err := readBootID()
	if err != nil {
		return Options{}, fmt.Errorf("read boot id: %w", err)
	}
	return Options{
		RunDir:      "/run/cnibox",
		StateDir:    "/var/lib/cnibox",
		BootID:      id,
		LockTimeout: 30 * time.Second,
	}, nil
}

// readBootID reads the kernel's boot id. Package os would ask epoll for it, which
// /proc/sys can do, and so make an epoll instance: 40 µs of a call that may need none.
func readBootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// Store takes its locks late and gives them back early: each transaction
// locks, maps, commits and unlocks, so nothing is held across netlink or another
// program. A Store may be used by several goroutines; they exclude each other
// just as processes do.
type Store struct {
	o Options
	// waiters counts the goroutines that are left behind in a blocking lock call.
	waiters waiters
	// idle is node.db between two transactions, dir the run directory.
	idle idle
	dir  keptDir
}

// New returns a store. It does no I/O: faulty options show at the first use.
func New(o Options) *Store { return &Store{o: o} }

// View runs fn in a read-only transaction on node.db. It waits for every other
// transaction to finish, for at most LockTimeout (ErrBusy). A file that does not
// exist is an empty store: it is not made and Fresh does not run.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	return s.node().run(ctx, false, func(b *bolt.Tx, m *memo) error { return fn(&Tx{b: b, memo: m, now: s.o.Now}) })
}

// Update runs fn in a read-write transaction on node.db: all that fn did is
// stored when it returns nil, else nothing. It excludes every other
// transaction and waits for them for at most LockTimeout (ErrBusy). A file that
// does not exist is made first, see Options.Fresh.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) error {
	return s.node().run(ctx, true, func(b *bolt.Tx, m *memo) error { return fn(&Tx{b: b, memo: m, now: s.o.Now}) })
}

// KeepView is View for keep.db.
func (s *Store) KeepView(ctx context.Context, fn func(*KeepTx) error) error {
	return s.keep().run(ctx, false, func(b *bolt.Tx, _ *memo) error { return fn(&KeepTx{b: b}) })
}

// KeepTryView is KeepView without waiting: ErrBusy when somebody has the file. It is
// for who has node.db already.
func (s *Store) KeepTryView(ctx context.Context, fn func(*KeepTx) error) error {
	f := s.keep()
	f.never = true
	return f.run(ctx, false, func(b *bolt.Tx, _ *memo) error { return fn(&KeepTx{b: b}) })
}

// KeepUpdate is Update for keep.db: when it returns nil, the changes have
// reached the disk. Where both files are needed, it goes outside.
func (s *Store) KeepUpdate(ctx context.Context, fn func(*KeepTx) error) error {
	return s.keep().run(ctx, true, func(b *bolt.Tx, _ *memo) error { return fn(&KeepTx{b: b}) })
}

// RunDir is the run directory: of all boots.
func (s *Store) RunDir() string { return s.o.RunDir }

// Path is node.db's.
func (s *Store) Path() string { return filepath.Join(s.o.RunDir, s.o.BootID, nodeName) }

// OverlayPath is where the agent of this node leaves its hand-off file.
func (s *Store) OverlayPath() string { return filepath.Join(s.o.RunDir, OverlayFile) }

// KeepPath is keep.db's.
func (s *Store) KeepPath() string { return filepath.Join(s.o.StateDir, keepName) }

// SetAside renames node.db, so that the next Update makes a new one through
// Fresh, and returns the new path, which is in the same directory. It waits for
// transactions under way; ErrNotFound when there is no file.
func (s *Store) SetAside(ctx context.Context) (string, error) {
	return s.node().setAside(ctx)
}

func (s *Store) probe(op string) error {
	if s.o.Probe == nil {
		return nil
	}
	return s.o.Probe(op)
}

func (s *Store) node() *file {
	return &file{s: s, path: s.Path(), name: nodeName, hint: "run 'cnibox state repair'", fresh: s.fresh}
}

func (s *Store) keep() *file {
	hint := fmt.Sprintf("move %q away: sticky addresses, DHCP leases and import marks are lost then", s.KeepPath())
	return &file{s: s, path: s.KeepPath(), name: keepName, kept: true, hint: hint}
}

func (s *Store) fresh(ctx context.Context, b *bolt.Tx) error {
	if s.o.Fresh == nil {
		return nil
	}
	return s.o.Fresh(ctx, &Tx{b: b})
}
