// Package boltfile opens, locks and closes bbolt files that several processes
// share. A file is locked for one transaction only, a wait for the lock has a
// deadline, and a damaged file gives an error instead of a fault.
package boltfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// File is a bbolt file and how it is used.
type File struct {
	Dir *Dir
	// Name is the file's name in Dir, Path the whole path.
	Name, Path string
	// Durable: commits are synced to the disk, and an empty file counts as damaged,
	// because its content cannot be rebuilt.
	Durable bool
	// NoWait: a lock that is held is ErrBusy at once.
	NoWait bool
	// Whole: all pages are checked, even if nothing else seems to have written to the file.
	Whole bool
	// Hint says in errors what to do when the file is damaged.
	Hint string
	// Role names this process to those that wait for its lock.
	Role string
	// Program and BootID are written to the Info of a new file.
	Program, BootID string
	// Buckets are created in a new file. Fresh, if it is not nil, fills it.
	Buckets []string
	Fresh   func(context.Context, *bolt.Tx) error
	Locks   *Locks
	// Idle keeps the file open between transactions; nil for a file that is closed.
	Idle *Idle
	// Probe is called with "view" or "update" before the file is opened, with
	// "commit" before changes are written and with "committed" afterwards. Except
	// for the last, its error fails the transaction.
	Probe func(op string) error
}

// Run runs fn in one transaction. It commits when fn returns nil, else it rolls
// back. When fn only reads and there is no file, fn gets nil twice.
func (f *File) Run(ctx context.Context, write bool, fn func(*bolt.Tx, *Cache) error) error {
	op := "view"
	if write {
		op = "update"
	}
	if err := f.Probe(op); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("open %q: %w", f.Path, err)
	}
	within := func(o *opened) error {
		return f.guard(o, write, func(tx *bolt.Tx) error {
			if err := f.checkSchema(tx, o.cache); err != nil {
				return err
			}
			return fn(tx, o.cache)
		})
	}
	if o := f.Idle.copied(); o != nil && !write && !f.Whole {
		return within(o)
	}
	o, err := f.open(ctx, write)
	if err != nil && write {
		return unwritable(err)
	}
	if err != nil {
		return err
	}
	if o == nil {
		return fn(nil, nil)
	}
	f.noteHolder(o, write)
	err = within(o)
	if errors.Is(err, kv.ErrDamaged) && !strings.Contains(err.Error(), f.Hint) {
		err = fmt.Errorf("use %q: %w (%s)", f.Path, err, f.Hint) // of a record in it
	}
	if err != nil {
		return errors.Join(err, o.close())
	}
	sparse := write && o.isSparse()
	if err := f.release(o); err != nil || !sparse {
		return err
	}
	_ = f.compact(ctx) // the transaction is complete; a later one tries again
	return nil
}

// open returns the file, locked and checked. It returns nil for a reader when
// there is no file, or an empty one that is not Durable. A writer creates it then.
func (f *File) open(ctx context.Context, write bool) (*opened, error) {
	w := f.Locks.begin(ctx)
	w.never = f.NoWait
	for created := 0; ; created++ {
		o, err := f.openLocked(w, write)
		if err != nil {
			return nil, err
		}
		if o != nil && (o.at.Size > 0 || f.Durable) {
			if err := f.check(o); err != nil {
				return nil, errors.Join(err, o.close())
			}
			return o, nil
		}
		if o != nil {
			_ = o.close()
		}
		if !write {
			return nil, nil
		}
		if err := w.expired(); err != nil && created > 0 {
			return nil, fmt.Errorf("make %q: another program removes it again and again: %w", f.Path, err)
		}
		if err := f.create(ctx, w); err != nil {
			return nil, err
		}
	}
}

// check checks the open and locked file, and drops what is known of an earlier state.
func (f *File) check(o *opened) error {
	meta, err := f.checkMeta(o)
	if err != nil {
		return f.damaged(err)
	}
	if err := o.refresh(meta); err != nil {
		return err
	}
	return f.verify(o)
}

// openLocked opens the file as it is and locks it; it returns nil when there is
// no file. Readers take the exclusive lock too: with a shared lock, of 16 readers
// some always overlap, and a writer was measured to wait 6 s (0.1 s with this).
func (f *File) openLocked(w wait, write bool) (*opened, error) {
	for {
		o, err := f.openNamed(write)
		if err != nil || o == nil {
			return nil, err
		}
		if err := f.lock(w, o); err != nil {
			return nil, err
		}
		same, err := f.isNamed(o)
		if err == nil && same {
			return o, nil
		}
		f.Dir.forget()
		if err := errors.Join(err, o.close()); err != nil {
			return nil, err
		}
		if err := w.expired(); err != nil {
			return nil, fmt.Errorf("open %q: another program replaces it again and again: %w", f.Path, err)
		}
	}
}

// lock locks the open file, or closes it.
func (f *File) lock(w wait, o *opened) error {
	held := uninterrupted(int(o.file.Fd()), exclusive().try)
	if held == nil {
		return nil
	}
	if o.db != nil && isHeld(held) {
		// The thread that waits for the lock may outlast this call, so it needs a
		// descriptor that bbolt does not close.
		if err := o.unmap(); err != nil {
			return errors.Join(err, o.close())
		}
	}
	if err := w.acquire(o.file, exclusive()); err != nil {
		o.file = nil // acquire closed it, or its abandoned call will
		return fmt.Errorf("lock %q: %w%s", f.Path, errors.Join(err, o.close()), f.holder(err))
	}
	return nil
}

// isNamed reports whether the file's path still names the open file.
func (f *File) isNamed(o *opened) (bool, error) {
	st, exists, err := lstat(f.Path)
	if err != nil || !exists || st.Dev != o.at.Dev || st.Ino != o.at.Ino {
		return false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, f.notRegular("not a regular file")
	}
	o.at = st
	return true, nil
}

// openNamed opens the file without a lock; it returns nil when there is none. A
// file that an earlier transaction left open may have been replaced since. The
// caller checks that once it has the lock.
func (f *File) openNamed(write bool) (*opened, error) {
	if o := f.Idle.take(); o != nil {
		return o, nil
	}
	var o *opened
	err := f.Dir.in(write, func(at int) (err error) {
		o, err = f.openAt(at, write)
		return err
	})
	if errors.Is(err, errNoFile) || errors.Is(err, unix.ENOENT) && !write {
		return nil, nil
	}
	return o, err
}

// errNoFile means that the directory exists and the file does not. It never leaves
// this package.
var errNoFile = errors.New("no such file")

// notRegular returns the error for a path that another kind of file has. It is ErrDamaged, so that DEL
// continues without keep.db and a repair sets the path aside, and ErrInvalid.
func (f *File) notRegular(what string) error {
	return f.damaged(fmt.Errorf("%w: %w: %s", kv.ErrDamaged, kv.ErrInvalid, what))
}

// openAt opens the file in its directory.
func (f *File) openAt(at int, write bool) (*opened, error) {
	const flags = unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, f.Name, unix.O_RDWR|flags, 0)
	readOnly := err != nil && !write && isUnwritable(err)
	if readOnly {
		fd, err = openat(at, f.Name, unix.O_RDONLY|flags, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, errNoFile
	case errors.Is(err, unix.ELOOP):
		return nil, f.notRegular("a symbolic link")
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return nil, f.notRegular("not a regular file")
	case err != nil:
		return nil, fmt.Errorf("open %q: %w", f.Path, err)
	}
	st, err := checkOwned(fd, f.Path)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &opened{
		file: os.NewFile(uintptr(fd), f.Path), at: st,
		readOnly: readOnly, cache: &Cache{},
	}, nil
}
