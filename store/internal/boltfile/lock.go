package boltfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxAbandoned bounds the threads of one process that are blocked in lock calls after the deadline has
// passed. A daemon reaches it only if a holder is stopped for a long time.
const maxAbandoned = 64

// Locks defines how a process waits for its locks.
type Locks struct {
	// Timeout bounds the wait of one operation for all its locks together.
	Timeout time.Duration
	// Waited is called after each wait for a lock that was held, whether or not the lock was obtained.
	// what is a file's path or a lock's name. Waited may be nil.
	Waited func(what string, d time.Duration)
	// abandoned counts the blocked lock calls whose callers have returned.
	abandoned atomic.Int32
}

// wait is the time that one operation has for its locks.
type wait struct {
	ctx      context.Context
	locks    *Locks
	start    time.Time
	deadline time.Time
	// never means that the error for a held lock is ErrBusy at once.
	never bool
	// what is the lock's name for Waited. "" means the file's path.
	what string
}

func (l *Locks) begin(ctx context.Context) wait {
	now := time.Now()
	return wait{ctx: ctx, locks: l, start: now, deadline: now.Add(l.Timeout)}
}

// expired returns ErrBusy when the deadline has passed or the context has ended,
// with the context's error in the second case.
func (w wait) expired() error {
	if err := w.ctx.Err(); err != nil {
		return fmt.Errorf("%w: waited %v: %w", ErrBusy, time.Since(w.start).Round(time.Millisecond), err)
	}
	if time.Now().After(w.deadline) {
		return fmt.Errorf("%w: waited %v", ErrBusy, time.Since(w.start).Round(time.Millisecond))
	}
	return nil
}

// lockable is an open file.
type lockable interface {
	Fd() uintptr
	Name() string
	Close() error
}

// lockCalls are the system calls that lock a file, without waiting and with.
type lockCalls struct {
	try, block func(fd int) error
}

// acquire locks f, or fails with ErrBusy at the deadline. After an error f is closed, at the latest when
// the blocked call returns, so that a lock that is obtained too late is released.
func (w wait) acquire(f lockable, l lockCalls) error {
	fd := int(f.Fd())
	err := uninterrupted(fd, l.try)
	if err == nil {
		return nil
	}
	if !isHeld(err) {
		return errors.Join(err, f.Close())
	}
	if w.never {
		return errors.Join(ErrBusy, f.Close())
	}
	if err := w.expired(); err != nil {
		return errors.Join(err, f.Close())
	}
	if w.locks.abandoned.Load() >= maxAbandoned {
		return errors.Join(fmt.Errorf("%w: %d earlier calls still wait", ErrBusy, maxAbandoned), f.Close())
	}
	if w.locks.Waited == nil {
		return w.block(f, l)
	}
	start := time.Now()
	err = w.block(f, l)
	w.locks.Waited(cmp.Or(w.what, f.Name()), time.Since(start))
	return err
}

// block waits in a separate thread, because a blocking lock call takes no
// deadline.
func (w wait) block(f lockable, l lockCalls) error {
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	got := make(chan error)
	left := make(chan struct{})
	go func() {
		err := uninterrupted(int(f.Fd()), l.block)
		select {
		case got <- err:
		case <-left:
			_ = f.Close()
			w.locks.abandoned.Add(-1)
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return nil
	case <-w.ctx.Done():
	case <-timer.C:
	}
	w.locks.abandoned.Add(1)
	close(left)
	if err := w.expired(); err != nil {
		return err
	}
	return ErrBusy
}

// uninterrupted repeats a call that a signal interrupts.
func uninterrupted(fd int, call func(fd int) error) error {
	for {
		if err := call(fd); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isHeld reports whether a lock call failed because the lock is held.
func isHeld(err error) bool {
	return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES)
}

// exclusive is the exclusive lock of flock(2).
func exclusive() lockCalls {
	return lockCalls{
		try:   func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) },
		block: func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) },
	}
}

// sameFile reports whether path still names the open file. A lock on a file that
// was removed or replaced excludes no other process.
func sameFile(fd int, path string) (bool, error) {
	var open unix.Stat_t
	if err := unix.Fstat(fd, &open); err != nil {
		return false, fmt.Errorf("stat %q: %w", path, err)
	}
	named, exists, err := lstat(path)
	return exists && open.Dev == named.Dev && open.Ino == named.Ino, err
}

// lstat is lstat(2). If the path does not exist, exists is false and there is no error.
func lstat(path string) (st unix.Stat_t, exists bool, err error) {
	err = unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return st, false, nil
	}
	if err != nil {
		return st, false, fmt.Errorf("stat %q: %w", path, err)
	}
	return st, true, nil
}
