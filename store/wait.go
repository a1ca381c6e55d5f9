package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxWaiters bounds the threads that one process leaves behind in the kernel,
// waiting for locks whose deadline has passed. Only a holder that was stopped
// for many deadlines makes a daemon get there.
const maxWaiters = 64

// waiters counts lock calls that nobody waits for any more.
type waiters struct{ abandoned atomic.Int32 }

// wait is how long one operation may wait for its locks, all together.
type wait struct {
	ctx      context.Context
	start    time.Time
	deadline time.Time
	// never: a lock that is held is ErrBusy at once.
	never bool
	w     *waiters
	// what is waited for, where the file's name does not tell, and told is
	// Options.Waited.
	what string
	told func(what string, d time.Duration)
}

func (s *Store) wait(ctx context.Context) wait {
	now := time.Now()
	return wait{ctx: ctx, start: now, deadline: now.Add(s.o.LockTimeout), w: &s.waiters, told: s.o.Waited}
}

// expired is ErrBusy, and the context's error if that ended, when the time is up.
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

// lock is a lock call on a file, without waiting and with.
type lock struct {
	try, block func(fd int) error
}

// acquire locks f, or fails with ErrBusy at the deadline. When it fails, f is
// closed, at the latest when the abandoned call returns: so a lock that comes
// too late is given back at once.
func (w wait) acquire(f lockable, l lock) error {
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
	if w.w.abandoned.Load() >= maxWaiters {
		return errors.Join(fmt.Errorf("%w: %d earlier calls still wait", ErrBusy, maxWaiters), f.Close())
	}
	if w.told == nil {
		return w.block(f, l)
	}
	start := time.Now()
	err = w.block(f, l)
	w.told(cmp.Or(w.what, f.Name()), time.Since(start))
	return err
}

// block waits in a thread of its own: no lock call can be given a deadline.
func (w wait) block(f lockable, l lock) error {
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
			w.w.abandoned.Add(-1)
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
	w.w.abandoned.Add(1)
	close(left)
	if err := w.expired(); err != nil {
		return err
	}
	return ErrBusy
}

// uninterrupted repeats a call that a signal ends.
func uninterrupted(fd int, call func(fd int) error) error {
	for {
		if err := call(fd); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isHeld tells that somebody else holds the lock.
func isHeld(err error) bool {
	return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES)
}

// exclusive is flock(2)'s exclusive lock.
func exclusive() lock {
	return lock{
		try:   func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) },
		block: func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) },
	}
}

// sameFile tells whether path still names the open file: a lock on a file that
// was removed or replaced excludes nobody.
func sameFile(fd int, path string) (bool, error) {
	var open unix.Stat_t
	if err := unix.Fstat(fd, &open); err != nil {
		return false, fmt.Errorf("stat %q: %w", path, err)
	}
	named, there, err := lstat(path)
	return there && open.Dev == named.Dev && open.Ino == named.Ino, err
}

// lstat describes what a path names; there is false for nothing.
func lstat(path string) (st unix.Stat_t, there bool, err error) {
	err = unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return st, false, nil
	}
	if err != nil {
		return st, false, fmt.Errorf("stat %q: %w", path, err)
	}
	return st, true, nil
}
