package boltfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// ByteLocks are locks on single bytes beyond the end of one empty file. They are open-file-description
// locks (fcntl(2), F_OFD_SETLK), which the kernel releases when the process ends, even if it is killed.
type ByteLocks struct {
	Dir *Dir
	// Name is the file's name in Dir.
	Name  string
	Locks *Locks
	// Probe is called before a lock is tried; its error fails the call.
	Probe func() error
}

// Lock is a held lock on one byte.
type Lock struct {
	once sync.Once
	f    *byteFile
	at   int64
}

// byteFile is the open lock file. An [os.File] would cost as much as the lock.
type byteFile struct {
	fd   int
	path string
}

// Fd returns the descriptor.
func (b *byteFile) Fd() uintptr { return uintptr(b.fd) }

// Name returns the path.
func (b *byteFile) Name() string { return b.path }

// Close closes the descriptor. Call it once.
func (b *byteFile) Close() error { return unix.Close(b.fd) }

// Unlock releases the lock. A second call, or one on nil, does nothing.
func (l *Lock) Unlock() {
	if l != nil {
		l.once.Do(l.unlock)
	}
}

// unlock unlocks before it closes: a child process that was forked a moment ago
// shares the descriptor until it executes its program.
func (l *Lock) unlock() {
	_ = unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: l.at, Len: 1})
	_ = l.f.Close()
}

func ofdLock(at int64, exclusive bool) lockCalls {
	typ := int16(unix.F_RDLCK)
	if exclusive {
		typ = unix.F_WRLCK
	}
	call := func(fd, cmd int) error {
		return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: typ, Start: at, Len: 1})
	}
	return lockCalls{
		try:   func(fd int) error { return call(fd, unix.F_OFD_SETLK) },
		block: func(fd int) error { return call(fd, unix.F_OFD_SETLKW) },
	}
}

// Lock locks one byte, exclusively or shared. At the deadline it fails with ErrBusy. what is the lock's
// name for Locks.Waited.
func (b *ByteLocks) Lock(ctx context.Context, what string, at int64, exclusive bool) (*Lock, error) {
	w := b.Locks.begin(ctx)
	w.what = what
	return b.lock(w, at, exclusive)
}

// TryLock is Lock without waiting. It returns false if the lock is held.
func (b *ByteLocks) TryLock(ctx context.Context, at int64, exclusive bool) (*Lock, bool, error) {
	w := b.Locks.begin(ctx)
	w.never = true
	l, err := b.lock(w, at, exclusive)
	if errors.Is(err, ErrBusy) {
		return nil, false, nil
	}
	return l, err == nil, err
}

// lock starts again if the lock file was removed while it waited.
func (b *ByteLocks) lock(w wait, at int64, exclusive bool) (*Lock, error) {
	if err := b.Probe(); err != nil {
		return nil, err
	}
	for {
		f, err := b.open()
		if err != nil {
			return nil, err
		}
		if err := w.acquire(f, ofdLock(at, exclusive)); err != nil {
			if !w.never {
				err = fmt.Errorf("%w%s", err, b.holder(err, at))
			}
			return nil, err
		}
		same, err := sameFile(int(f.Fd()), f.Name())
		if err == nil && same {
			return &Lock{f: f, at: at}, nil
		}
		b.Dir.forget()
		if err := errors.Join(err, f.Close(), w.expired()); err != nil {
			return nil, err
		}
	}
}

// open opens the lock file. Each lock has a separate descriptor, because an open-file-description lock
// belongs to a descriptor.
func (b *ByteLocks) open() (*byteFile, error) {
	f := &byteFile{path: filepath.Join(b.Dir.path, b.Name)}
	err := b.Dir.in(true, func(at int) (err error) {
		const flags = unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC
		f.fd, err = openat(at, b.Name, flags, 0o600)
		if err != nil {
			return fmt.Errorf("open %q: %w", f.path, err)
		}
		return nil
	})
	if err != nil {
		return nil, unwritable(err)
	}
	return f, nil
}
