package boltfile

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

	"github.com/cnibox/cnibox/store/internal/kv"
)

// session is one transaction on an open file.
type session struct {
	*opened
	tx *bolt.Tx
}

// guard runs fn in one transaction on a locked file. A damaged file makes bbolt
// panic, or read memory that is not mapped. Guard turns that into ErrDamaged,
// closes the file and gives the lock back. A panic of fn's own goes on after the
// transaction was rolled back and the file closed.
func (f *File) guard(o *opened, write bool, fn func(*bolt.Tx) error) (err error) {
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
			err = fmt.Errorf("use %q: %w: %v (%s)", f.Path, kv.ErrDamaged, cause, f.Hint)
		default:
			_ = errors.Join(s.rollback(), s.close())
		}
	}()
	err = f.transact(s, write, fn)
	returned = true
	return err
}

func (f *File) transact(s *session, write bool, fn func(*bolt.Tx) error) error {
	if s.db == nil {
		if err := s.openDB(f); err != nil {
			return err
		}
	}
	tx, err := s.db.Begin(write)
	if err != nil {
		return fmt.Errorf("begin on %q: %w", f.Path, err)
	}
	s.tx = tx
	if err := fn(tx); err != nil || !write {
		return err
	}
	if err := f.Probe("commit"); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return unwritable(fmt.Errorf("commit to %q: %w", f.Path, err))
	}
	s.committed()
	_ = f.Probe("committed")
	return nil
}

// openDB hands the open and locked file to bbolt, which closes it from then on.
func (s *session) openDB(f *File) (err error) {
	s.db, err = bolt.Open(f.Path, 0o600, &bolt.Options{
		// bbolt locks this very descriptor, which holds the lock already, so that
		// succeeds at once.
		Timeout:      time.Nanosecond,
		ReadOnly:     s.readOnly,
		NoSync:       !f.Durable,
		NoGrowSync:   !f.Durable,
		NoStatistics: true,
		FreelistType: bolt.FreelistArrayType,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return s.file, nil },
	})
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return unwritable(fmt.Errorf("open %q: %w", f.Path, err)) // a new file: a repair does not help
	}
	if err != nil {
		return fmt.Errorf("open %q: %w: %w (%s)", f.Path, kv.ErrDamaged, err, f.Hint)
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

// abandon gives the lock back after a fault. It unlocks explicitly, because the
// mapping may keep the open file alive. bbolt is closed only if a transaction had
// begun: before that bbolt may still hold its own mutexes and closing would hang,
// so the mapping is left.
func (s *session) abandon() {
	_ = unix.Flock(int(s.file.Fd()), unix.LOCK_UN)
	defer func() {
		if recover() != nil {
			_ = s.closeFiles()
		}
	}()
	if s.tx == nil {
		_ = s.closeFiles()
		return
	}
	_ = errors.Join(s.rollback(), s.close())
}

// mapped reports whether a function may read mapped memory: those of bbolt, of the
// store and of its internal packages do.
func mapped(function string) bool {
	return strings.HasPrefix(function, "go.etcd.io/bbolt") ||
		strings.HasPrefix(function, "github.com/cnibox/cnibox/store.") ||
		strings.HasPrefix(function, "github.com/cnibox/cnibox/store/internal/")
}

// panicIsDamage reports, within a deferred function, whether the goroutine panics
// in bbolt, in the store, or in a library function that these called, or whether any
// function read memory at an address that is not mapped: only the file's mapping can
// be cut short. It is false when a caller's function panics for another reason, nil
// included, or ends the goroutine.
func panicIsDamage() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	panicking := false
	for {
		fr, more := frames.Next()
		switch {
		case fr.Function == "runtime.gopanic":
			panicking = true
		case fr.Function == "runtime.panicmemAddr": // a nil pointer leads to runtime.panicmem
			return true
		case !panicking || isLibrary(fr.Function):
		default:
			return mapped(fr.Function)
		}
		if !more {
			return false
		}
	}
}

// isLibrary reports whether a function belongs to Go's standard library, whose
// package paths have no dot before the first slash.
func isLibrary(function string) bool {
	first, _, nested := strings.Cut(function, "/")
	if !nested {
		first, _, _ = strings.Cut(function, ".")
		return first != "main"
	}
	return !strings.Contains(first, ".")
}
