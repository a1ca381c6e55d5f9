package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// file is one of the two database files.
type file struct {
	s          *Store
	path, name string
	// kept: the file outlives the boot, so commits are synced.
	kept bool
	// never: it does not wait for locks.
	never bool
	// hint is what to do when the file is damaged.
	hint string
	// fresh fills a new file; nil when there is nothing to be filled in.
	fresh func(context.Context, *bolt.Tx) error
}

// dir opens the file's directory.
func (f *file) dir(mk bool) (*os.File, error) {
	if f.kept {
		return f.s.stateDir(mk)
	}
	return f.s.runDir(mk)
}

func (f *file) op(name string) string {
	if f.kept {
		return "keep " + name
	}
	return name
}

// run is one transaction. fn gets nil when it only reads and there is no file.
func (f *file) run(ctx context.Context, write bool, fn func(*bolt.Tx, *memo) error) error {
	op := f.op("view")
	if write {
		op = f.op("update")
	}
	if err := f.s.probe(op); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("open %q: %w", f.path, err)
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
	err = f.guard(o, write, func(b *bolt.Tx) error {
		if err := f.checkSchema(b, o.memo); err != nil {
			return err
		}
		return fn(b, o.memo)
	})
	if err != nil {
		return errors.Join(err, o.close())
	}
	return f.rest(o, write)
}

// open returns the file, locked and checked; nil when it is only to be read and
// there is none, or an empty node.db. An empty keep.db is damaged: nothing can
// rebuild what it held, so it is not made anew in silence.
func (f *file) open(ctx context.Context, write bool) (*opened, error) {
	w := f.s.wait(ctx)
	w.never = f.never
	for made := 0; ; made++ {
		o, size, err := f.openLocked(w, write)
		if err != nil {
			return nil, err
		}
		if o != nil && (size > 0 || f.kept) {
			meta, err := f.checkWhole(o.file, size)
			if err == nil {
				err = o.renew(meta)
			}
			if err != nil {
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
		if err := w.expired(); err != nil && made > 0 {
			return nil, fmt.Errorf("make %q: it vanishes again and again: %w", f.path, err)
		}
		if err := f.make(ctx, w); err != nil {
			return nil, err
		}
	}
}

// openLocked opens the file as it is and locks it; nil when there is none.
// Readers take the exclusive lock too: of 16 readers with a shared one, some
// always overlap, and a writer was seen to wait for 6 s (0.1 s with this).
func (f *file) openLocked(w wait, write bool) (*opened, int64, error) {
	for {
		o, err := f.openNamed(write)
		if err != nil || o == nil {
			return nil, 0, err
		}
		if o.db != nil && isHeld(uninterrupted(int(o.file.Fd()), exclusive().try)) {
			// Who waits for the lock, maybe longer than this call, needs a file that
			// bbolt does not close.
			if err := o.unmap(); err != nil {
				return nil, 0, errors.Join(err, o.close())
			}
		}
		if err := w.acquire(o.file, exclusive()); err != nil {
			o.file = nil // closed already, or by the call that still waits
			return nil, 0, fmt.Errorf("lock %q: %w%s", f.path, errors.Join(err, o.close()), f.holder(err))
		}
		size, same, err := f.isNamed(o)
		if err == nil && same {
			return o, size, nil
		}
		f.s.forgetRunDir()
		if err := errors.Join(err, o.close()); err != nil {
			return nil, 0, err
		}
		if err := w.expired(); err != nil {
			return nil, 0, fmt.Errorf("open %q: it is replaced again and again: %w", f.path, err)
		}
	}
}

// isNamed tells whether the file's path still names what is open, and its size.
func (f *file) isNamed(o *opened) (size int64, same bool, err error) {
	st, there, err := lstat(f.path)
	if err != nil || !there || st.Dev != o.dev || st.Ino != o.inode {
		return 0, false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, false, fmt.Errorf("open %q: %w: not a regular file", f.path, ErrInvalid)
	}
	return st.Size, true, nil
}

// openNamed opens the file as it is, without a lock; nil when there is none.
// One that an earlier transaction left open may have been replaced since: that
// is seen when it is locked.
func (f *file) openNamed(write bool) (*opened, error) {
	if o := f.rested(); o != nil {
		return o, nil
	}
	var o *opened
	err := f.inDir(write, func(at int) (err error) {
		o, err = f.openAt(at, write)
		return err
	})
	if errors.Is(err, errNoFile) || errors.Is(err, unix.ENOENT) && !write {
		return nil, nil
	}
	return o, err
}

// inDir opens something in the file's directory.
func (f *file) inDir(mk bool, open func(at int) error) error {
	if !f.kept {
		return f.s.inRunDir(mk, open)
	}
	dir, err := f.s.stateDir(mk)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	return open(int(dir.Fd()))
}

// errNoFile never leaves this package.
var errNoFile = errors.New("no such file")

// openAt opens the file in its directory.
func (f *file) openAt(at int, write bool) (*opened, error) {
	const flags = unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, f.name, unix.O_RDWR|flags, 0)
	readOnly := err != nil && !write && isUnwritable(err)
	if readOnly {
		fd, err = openat(at, f.name, unix.O_RDONLY|flags, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, errNoFile
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("open %q: %w: a symbolic link", f.path, ErrInvalid)
	case err != nil:
		return nil, fmt.Errorf("open %q: %w", f.path, err)
	}
	st, err := checkOwned(fd, f.path)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &opened{
		file: os.NewFile(uintptr(fd), f.path), dev: st.Dev, inode: st.Ino,
		readOnly: readOnly, memo: &memo{},
	}, nil
}

// lockDir opens the directory and locks it: whoever makes, removes or renames
// the file holds this lock. It goes before the file's own.
func (f *file) lockDir(w wait) (*os.File, error) {
	for {
		dir, err := f.dir(true)
		if err != nil {
			return nil, err
		}
		if err := w.acquire(dir, exclusive()); err != nil {
			return nil, fmt.Errorf("lock %q: %w", dir.Name(), err)
		}
		same, err := sameFile(int(dir.Fd()), dir.Name())
		if err == nil && same {
			return dir, nil
		}
		if err := errors.Join(err, dir.Close(), w.expired()); err != nil {
			return nil, err
		}
	}
}

// make makes the file where there is none, or an empty one: under another name,
// complete, and then renamed, so that nobody sees half of it.
func (f *file) make(ctx context.Context, w wait) error {
	dir, err := f.lockDir(w)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	at := int(dir.Fd())
	var st unix.Stat_t
	err = unix.Fstatat(at, f.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Size > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		return nil // somebody else was faster; whatever it is, the opener judges it
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stat %q: %w", f.path, err)
	}
	temp := f.name + ".new"
	if err := unlinkat(at, temp); err != nil {
		return fmt.Errorf("make %q: %w", f.path, err)
	}
	if err := f.fill(ctx, at, temp); err != nil {
		return fmt.Errorf("make %q: %w", f.path, errors.Join(err, unlinkat(at, temp)))
	}
	err = unix.Renameat(at, temp, at, f.name)
	if errors.Is(err, unix.ENOENT) {
		return nil // the directory was removed meanwhile: the opener begins anew
	}
	if err != nil {
		return fmt.Errorf("make %q: %w", f.path, err)
	}
	if f.kept {
		if err := unix.Fsync(at); err != nil {
			return fmt.Errorf("sync %q: %w", dir.Name(), err)
		}
	}
	return nil
}

// fill writes a new file under a temporary name.
func (f *file) fill(ctx context.Context, at int, temp string) error {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, temp, flags, 0o600)
	if errors.Is(err, unix.ENOENT) {
		return nil // the directory was removed meanwhile, see make
	}
	if err != nil {
		return err
	}
	o := &opened{file: os.NewFile(uintptr(fd), filepath.Join(filepath.Dir(f.path), temp))}
	err = f.guard(o, true, func(b *bolt.Tx) error {
		if err := f.writeInfo(b); err != nil {
			return err
		}
		if f.fresh == nil {
			return nil
		}
		return f.fresh(ctx, b)
	})
	return errors.Join(err, o.close())
}

func unlinkat(at int, name string) error {
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// setAside renames the file, whatever its state.
func (f *file) setAside(ctx context.Context) (string, error) {
	w := f.s.wait(ctx)
	dir, err := f.lockDir(w)
	if err != nil {
		return "", fmt.Errorf("set aside %q: %w", f.path, err)
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	o, _, err := f.openLocked(w, true)
	if errors.Is(err, ErrBusy) {
		return "", fmt.Errorf("set aside: %w", err)
	}
	if err == nil && o == nil {
		return "", fmt.Errorf("set aside %q: %w", f.path, ErrNotFound)
	}
	if o != nil {
		defer o.close() //nolint:errcheck // nothing was written
	}
	base := f.name + ".damaged-" + time.Now().UTC().Format("20060102T150405")
	for i := 0; ; i++ {
		name := base
		if i > 0 {
			name = fmt.Sprintf("%s-%d", base, i)
		}
		err := unix.Renameat2(int(dir.Fd()), f.name, int(dir.Fd()), name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("set aside %q: %w", f.path, err)
		}
		return filepath.Join(dir.Name(), name), nil
	}
}
