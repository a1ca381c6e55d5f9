package store

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// session is one transaction on an opened file.
type session struct {
	*opened
	tx *bolt.Tx
}

// guard runs fn in one transaction on a locked file. A damaged file makes bbolt
// panic, or read where nothing is mapped; that ends here as ErrDamaged, with the
// file closed and the lock given back. fn's own panics go on, after everything
// was rolled back and closed.
func (f *file) guard(o *opened, write bool, fn func(*bolt.Tx) error) (err error) {
	s := &session{opened: o}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	returned := false
	defer func() {
		switch {
		case returned:
			err = errors.Join(err, s.rollback())
		case panicIsDamage():
			cause := recover()
			s.abandon()
			err = fmt.Errorf("use %q: %w: %v (%s)", f.path, ErrDamaged, cause, f.hint)
		default:
			_ = errors.Join(s.rollback(), s.close())
		}
	}()
	err = f.transact(s, write, fn)
	returned = true
	return err
}

func (f *file) transact(s *session, write bool, fn func(*bolt.Tx) error) error {
	if s.db == nil {
		if err := s.open(f); err != nil {
			return err
		}
	}
	tx, err := s.db.Begin(write)
	if err != nil {
		return fmt.Errorf("begin on %q: %w", f.path, err)
	}
	s.tx = tx
	if err := fn(tx); err != nil || !write {
		return err
	}
	if err := f.s.probe(f.op("commit")); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return unwritable(fmt.Errorf("commit to %q: %w", f.path, err))
	}
	_ = f.s.probe(f.op("committed"))
	return nil
}

// open gives the file, which is open and locked already, to bbolt, which closes it.
func (s *session) open(f *file) (err error) {
	s.db, err = bolt.Open(f.path, 0o600, &bolt.Options{
		// bbolt's own lock call on this very file succeeds at once.
		Timeout:      time.Nanosecond,
		ReadOnly:     s.readOnly,
		NoSync:       !f.kept,
		NoGrowSync:   !f.kept,
		NoStatistics: true,
		FreelistType: bolt.FreelistArrayType,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return s.file, nil },
	})
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return unwritable(fmt.Errorf("open %q: %w", f.path, err)) // a new file: no repair helps
	}
	if err != nil {
		return fmt.Errorf("open %q: %w: %w (%s)", f.path, ErrDamaged, err, f.hint)
	}
	return nil
}

// rollback ends a transaction that was not committed.
func (s *session) rollback() error {
	if s.tx == nil {
		return nil
	}
	if err := s.tx.Rollback(); !errors.Is(err, berrors.ErrTxClosed) {
		return err
	}
	return nil
}

// abandon gives the lock back after a fault. bbolt may hold its own mutexes
// still, so it is closed only where that cannot hang: else its mapping stays.
// The lock is dropped by name, since the mapping keeps the open file alive.
func (s *session) abandon() {
	_ = unix.Flock(int(s.file.Fd()), unix.LOCK_UN)
	defer func() {
		if recover() != nil {
			_ = s.leave()
		}
	}()
	if s.tx == nil {
		_ = s.leave()
		return
	}
	_ = errors.Join(s.rollback(), s.close())
}

// Prefixes of the functions that touch what is mapped.
const (
	boltFuncs  = "go.etcd.io/bbolt"
	storeFuncs = "github.com/cnibox/cnibox/store."
)

// panicIsDamage tells, within a deferred function, whether the goroutine panics
// in bbolt or in this package and what these called; not when it is a caller's
// function that panics, or exits the goroutine.
func panicIsDamage() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	panicking := false
	for {
		fr, more := frames.Next()
		switch {
		case fr.Function == "runtime.gopanic":
			panicking = true
		case !panicking || isLibrary(fr.Function):
		default:
			return strings.HasPrefix(fr.Function, boltFuncs) || strings.HasPrefix(fr.Function, storeFuncs)
		}
		if !more {
			return false
		}
	}
}

// isLibrary tells functions of Go's own packages, whose paths have no dot before
// the first slash.
func isLibrary(function string) bool {
	first, _, nested := strings.Cut(function, "/")
	if !nested {
		first, _, _ = strings.Cut(function, ".")
		return first != "main"
	}
	return !strings.Contains(first, ".")
}
