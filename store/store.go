package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/pool"
)

// Names of the files in their directories.
const (
	nodeName = "node.db"
	keepName = "keep.db"
	lockName = "keys.lock"
)

// DefaultRunDir is Options.RunDir of a real node.
const DefaultRunDir = "/run/cnibox"

// Options of a Store. The zero value is not usable; see DefaultOptions.
type Options struct {
	// RunDir holds state that is void after the boot: RunDir/<boot id>/node.db.
	RunDir string
	// StateDir holds keep.db.
	StateDir string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// LockTimeout bounds every wait for a lock.
	LockTimeout time.Duration
	// Role names this process to those that wait for a lock that it holds.
	Role string
	// Program is the binary's version. It is recorded in a new file.
	Program string
	// Fresh is called in the transaction that makes a new node.db, before anything
	// else is stored. It rebuilds the state from the kernel. If it returns an error, no
	// file is made. It must not call the Store, only tx.
	Fresh func(ctx context.Context, tx *Tx) error
	// Mirror makes a Mirror for one Update; nil if leases have no files.
	Mirror func() Mirror
	// Now is the clock; nil for time.Now.
	Now func() time.Time
	// Waited is called after each wait for a lock that was held, whether or not the
	// lock was obtained; it may be nil. What is a file's path or a lock's name.
	Waited func(what string, d time.Duration)
	// Probe is called in every transaction and before every lock; tests make the n-th
	// call fail. Op is "view", "update", "keep view" or "keep update" before a file is
	// opened, "commit" or "keep commit" before the changes are written, "committed"
	// or "keep committed" after that (its error is ignored then), and "lock" before a
	// lock is tried.
	Probe func(op string) error
}

// DefaultOptions returns the options of a real node: /run/cnibox, /var/lib/cnibox,
// the kernel's boot id and waits of at most 30 s. It does not read the environment.
func DefaultOptions() (Options, error) {
	id, err := boltfile.ReadBootID()
	if err != nil {
		return Options{}, fmt.Errorf("read boot id: %w", err)
	}
	return Options{
		RunDir:      DefaultRunDir,
		StateDir:    "/var/lib/cnibox",
		BootID:      id,
		LockTimeout: 30 * time.Second,
	}, nil
}

// Store gives access to node.db and keep.db. Each transaction locks, maps, commits
// and unlocks its file, so no lock is held during netlink calls or another program's
// run. Goroutines may share a Store; they exclude each other as processes do.
type Store struct {
	o          Options
	locks      *boltfile.Locks
	run, state *boltfile.Dir
	// idle keeps node.db open between two transactions.
	idle boltfile.Idle
	// callLocks is how CountCall waits: briefly, because a call must not wait for being counted.
	callLocks *boltfile.Locks
}

// New returns a store. It does no I/O: faulty options give errors at the first use.
func New(o Options) *Store {
	return &Store{
		o:     o,
		locks: &boltfile.Locks{Timeout: o.LockTimeout, Waited: o.Waited},
		run:   boltfile.NewBootDir(o.RunDir, o.BootID),
		state: boltfile.NewDir(o.StateDir),

		callLocks: &boltfile.Locks{Timeout: 100 * time.Millisecond},
	}
}

// View runs fn in a read-only transaction on node.db. It waits for every other
// transaction to finish, for at most LockTimeout (ErrBusy). A file that does not
// exist is an empty store: it is not created and Fresh does not run.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	return s.node().Run(ctx, false, s.withTx(fn))
}

// Read is a View that returns what fn returns.
func Read[T any](ctx context.Context, s *Store, fn func(*Tx) (T, error)) (out T, err error) {
	err = s.View(ctx, func(tx *Tx) (err error) {
		out, err = fn(tx)
		return err
	})
	return out, err
}

// ReadKeep is Read for keep.db.
func ReadKeep[T any](ctx context.Context, s *Store, fn func(*KeepTx) (T, error)) (out T, err error) {
	err = s.KeepView(ctx, func(tx *KeepTx) (err error) {
		out, err = fn(tx)
		return err
	})
	return out, err
}

// Check is View, and checks the whole file first. View and Update do that only if a
// program other than this one has written to it, by its modification time.
func (s *Store) Check(ctx context.Context, fn func(*Tx) error) error {
	f := s.node()
	f.Whole = true
	return f.Run(ctx, false, s.withTx(fn))
}

// Update runs fn in a read-write transaction on node.db. When fn returns nil, all its
// changes are stored, else none. Update excludes every other transaction and waits
// for them for at most LockTimeout (ErrBusy). A file that does not exist is created
// first; see Options.Fresh. If Mirror or Fresh has to wait for another program, the changes
// are discarded and fn is called again.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) error {
	var ended []*Holding
	err := s.updateMirrored(ctx, func(tx *Tx) error {
		err := fn(tx)
		ended = tx.ended
		return err
	})
	if err == nil {
		s.remember(ended)
	}
	return err
}

// Freeze makes View use a copy of node.db, without its lock, until thaw is called.
func (s *Store) Freeze(ctx context.Context) (thaw func(), err error) { return s.node().Freeze(ctx) }

// KeepView is View for keep.db.
func (s *Store) KeepView(ctx context.Context, fn func(*KeepTx) error) error {
	return s.runKeep(ctx, false, fn)
}

// KeepCheck is Check for keep.db.
func (s *Store) KeepCheck(ctx context.Context, fn func(*KeepTx) error) error {
	f := s.keep()
	f.Whole = true
	return f.Run(ctx, false, withKeepTx(fn))
}

// KeepTryView is KeepView without waiting, for Options.Fresh, where waiting for keep.db could be a deadlock: ErrBusy when the file
// is locked. The Update then waits without node.db's lock, and begins again.
func (s *Store) KeepTryView(ctx context.Context, fn func(*KeepTx) error) error {
	f := s.keep()
	f.NoWait = true
	err := f.Run(ctx, false, withKeepTx(fn))
	if errors.Is(err, ErrBusy) {
		return keepHeldError{err}
	}
	return err
}

// keepHeldError is KeepTryView's ErrBusy.
type keepHeldError struct{ error }

func (e keepHeldError) Unwrap() error { return e.error }

// updateNode runs fn in a transaction on node.db, which it creates if there is none.
func (s *Store) updateNode(ctx context.Context, fn func(*Tx) error) error {
	until := time.Now().Add(s.o.LockTimeout)
	for {
		err := s.node().Run(ctx, true, s.withTx(fn))
		var held keepHeldError
		if !errors.As(err, &held) || time.Now().After(until) {
			return err
		}
		if waited := s.KeepView(ctx, func(*KeepTx) error { return nil }); waited != nil {
			return errors.Join(err, waited)
		}
	}
}

// KeepUpdate is Update for keep.db. When it returns nil, the changes have reached the
// disk. If both files are needed, the transaction on keep.db begins first.
func (s *Store) KeepUpdate(ctx context.Context, fn func(*KeepTx) error) error {
	return s.runKeep(ctx, true, fn)
}

// RunDir returns Options.RunDir, the directory of all boots.
func (s *Store) RunDir() string { return s.o.RunDir }

// Path returns the path of node.db.
func (s *Store) Path() string { return filepath.Join(s.o.RunDir, s.o.BootID, nodeName) }

// OverlayPath returns the path of the agent's hand-off file.
func (s *Store) OverlayPath() string { return filepath.Join(s.o.RunDir, OverlayFile) }

// AgentSocket returns the path of the agent's socket.
func (s *Store) AgentSocket() string { return filepath.Join(s.o.RunDir, "agent.sock") }

// StateDir returns Options.StateDir, the directory of what outlives a boot.
func (s *Store) StateDir() string { return s.o.StateDir }

// KeepPath returns the path of keep.db.
func (s *Store) KeepPath() string { return filepath.Join(s.o.StateDir, keepName) }

// SetAside renames node.db and returns the new path, which is in the same directory.
// The next Update creates a new file; see Options.Fresh. SetAside waits for running
// transactions. ErrNotFound when there is no file.
func (s *Store) SetAside(ctx context.Context) (string, error) {
	return s.node().SetAside(ctx)
}

func (s *Store) probe(op string) error {
	if s.o.Probe == nil {
		return nil
	}
	return s.o.Probe(op)
}

// withTx adapts a function on a Tx to boltfile.
func (s *Store) withTx(fn func(*Tx) error) func(*bolt.Tx, *boltfile.Cache) error {
	return func(b *bolt.Tx, c *boltfile.Cache) error {
		return fn(&Tx{b: b, cache: c, memo: memoOf(c), now: s.o.Now})
	}
}

// withKeepTx adapts a function on a KeepTx to boltfile.
func withKeepTx(fn func(*KeepTx) error) func(*bolt.Tx, *boltfile.Cache) error {
	return func(b *bolt.Tx, _ *boltfile.Cache) error { return fn(&KeepTx{b: b}) }
}

func (s *Store) node() *boltfile.File {
	f := &boltfile.File{
		Dir: s.run, Name: nodeName, Path: s.Path(), Hint: "run 'cnibox state repair'",
		Role: s.o.Role, Program: s.o.Program, BootID: s.o.BootID,
		Buckets: []string{bucketAttachments, bucketNetworks, bucketClaims, bucketClaimOwners, pool.Bucket},
		Locks:   s.locks, Idle: &s.idle, Probe: s.probe,
	}
	f.Fresh = func(ctx context.Context, b *bolt.Tx) error {
		if s.o.Fresh != nil {
			if err := s.o.Fresh(ctx, &Tx{b: b}); err != nil {
				return err
			}
		}
		return s.copyEnforcing(ctx, b)
	}
	return f
}

func (s *Store) keep() *boltfile.File {
	return &boltfile.File{
		Dir: s.state, Name: keepName, Path: s.KeepPath(), Durable: true,
		Hint: "run 'cnibox state repair'",
		Role: s.o.Role, Program: s.o.Program, BootID: s.o.BootID,
		Buckets: []string{bucketMarks},
		Locks:   s.locks, Probe: func(op string) error { return s.probe("keep " + op) },
	}
}
