package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Locks on names are locks on one byte each of one empty file, far beyond its
// end. They are open-file-description locks (fcntl(2), F_OFD_SETLK): the kernel
// drops them with the process, however it ends.

// sharedDomain keeps the bytes of shared names apart from those of attachments.
const sharedDomain = 1 << 61

// Lock is a held lock.
type Lock struct {
	once sync.Once
	f    *keyFile
	at   int64
}

// keyFile is the file of the locks, open: an [os.File] would cost as much as the lock.
type keyFile struct {
	fd   int
	path string
}

// Fd is the descriptor.
func (k *keyFile) Fd() uintptr { return uintptr(k.fd) }

// Name is the path.
func (k *keyFile) Name() string { return k.path }

// Close closes it; once only.
func (k *keyFile) Close() error { return unix.Close(k.fd) }

// Unlock gives the lock back. Again, or on nil, it does nothing.
func (l *Lock) Unlock() {
	if l != nil {
		l.once.Do(l.unlock)
	}
}

// unlock does not leave it to close: a child process that was forked just now
// has the descriptor too, until it executes its program.
func (l *Lock) unlock() {
	_ = unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: l.at, Len: 1})
	_ = l.f.Close()
}

// LockAttachment takes the lock that an ADD or DEL of the attachment holds from
// before its first change until after its last. It waits for at most
// LockTimeout, then fails with ErrBusy.
func (s *Store) LockAttachment(ctx context.Context, k Key) (*Lock, error) {
	w := s.wait(ctx)
	w.what = k.describe()
	l, err := s.lockByte(w, attachmentByte(k), true)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", k.describe(), err)
	}
	return l, nil
}

// TryLockAttachment is LockAttachment without waiting: false when somebody
// works on the attachment right now. Pending records of such are not dead.
func (s *Store) TryLockAttachment(ctx context.Context, k Key) (*Lock, bool, error) {
	return s.tryLockByte(ctx, "lock "+k.describe(), attachmentByte(k), true)
}

// LockShared locks the name of a shared object, a bridge for instance:
// exclusive for whoever makes or removes it, not exclusive for its users. It
// waits for at most LockTimeout, then fails with ErrBusy.
func (s *Store) LockShared(ctx context.Context, name string, exclusive bool) (*Lock, error) {
	w := s.wait(ctx)
	w.what = name
	l, err := s.lockByte(w, sharedByte(name), exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock shared object %q: %w", name, err)
	}
	return l, nil
}

// TryLockShared is LockShared without waiting: false when it is not to be had.
func (s *Store) TryLockShared(ctx context.Context, name string, exclusive bool) (*Lock, bool, error) {
	return s.tryLockByte(ctx, fmt.Sprintf("lock shared object %q", name), sharedByte(name), exclusive)
}

func (k Key) describe() string {
	return fmt.Sprintf("%.80q of container %.80q on network %.80q", k.IfName, k.ContainerID, k.Network)
}

func attachmentByte(k Key) int64 { return hashByte(k.encode()) }

func sharedByte(name string) int64 { return sharedDomain | hashByte([]byte(name)) }

func hashByte(b []byte) int64 {
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:]) & (sharedDomain - 1))
}

func ofdLock(at int64, exclusive bool) lock {
	typ := int16(unix.F_RDLCK)
	if exclusive {
		typ = unix.F_WRLCK
	}
	call := func(fd, cmd int) error {
		return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: typ, Start: at, Len: 1})
	}
	return lock{
		try:   func(fd int) error { return call(fd, unix.F_OFD_SETLK) },
		block: func(fd int) error { return call(fd, unix.F_OFD_SETLKW) },
	}
}

// lockByte locks one byte; when the file was removed meanwhile, of the new one.
func (s *Store) lockByte(w wait, at int64, exclusive bool) (*Lock, error) {
	if err := s.probe("lock"); err != nil {
		return nil, err
	}
	for {
		f, err := s.openLocks()
		if err != nil {
			return nil, err
		}
		if err := w.acquire(f, ofdLock(at, exclusive)); err != nil {
			return nil, err
		}
		same, err := sameFile(int(f.Fd()), f.Name())
		if err == nil && same {
			return &Lock{f: f, at: at}, nil
		}
		s.forgetRunDir()
		if err := errors.Join(err, f.Close(), w.expired()); err != nil {
			return nil, err
		}
	}
}

func (s *Store) tryLockByte(ctx context.Context, what string, at int64, exclusive bool) (*Lock, bool, error) {
	w := s.wait(ctx)
	w.never = true
	l, err := s.lockByte(w, at, exclusive)
	switch {
	case errors.Is(err, ErrBusy):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	return l, true, nil
}

// openLocks opens the lock file, anew for each lock: the lock belongs to what
// open returned.
func (s *Store) openLocks() (*keyFile, error) {
	f := &keyFile{path: filepath.Join(s.o.RunDir, s.o.BootID, lockName)}
	err := s.inRunDir(true, func(at int) (err error) {
		const flags = unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if f.fd, err = openat(at, lockName, flags, 0o600); err != nil {
			return fmt.Errorf("open %q: %w", f.path, err)
		}
		return nil
	})
	if err != nil {
		return nil, unwritable(err)
	}
	return f, nil
}
