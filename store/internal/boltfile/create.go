package boltfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// lockDir opens the directory and locks it. Creating, removing and renaming the
// file take this lock, always before the file's own.
func (f *File) lockDir(w wait) (*os.File, error) {
	for {
		dir, err := f.Dir.open(true)
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

// create creates the file if it does not exist, or replaces an empty one. It writes the file under
// another name and then renames it, so that no process reads an incomplete file.
func (f *File) create(ctx context.Context, w wait) error {
	dir, err := f.lockDir(w)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	at := int(dir.Fd())
	var st unix.Stat_t
	err = unix.Fstatat(at, f.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (st.Size > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		return nil // another process created it; open checks it
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stat %q: %w", f.Path, err)
	}
	temp := f.Name + ".new"
	if err := unlinkat(at, temp); err != nil {
		return fmt.Errorf("make %q: %w", f.Path, err)
	}
	if err := f.fill(ctx, at, temp); err != nil {
		return fmt.Errorf("make %q: %w", f.Path, errors.Join(err, unlinkat(at, temp)))
	}
	err = unix.Renameat(at, temp, at, f.Name)
	if errors.Is(err, unix.ENOENT) {
		return nil // the directory was removed meanwhile: open tries again
	}
	if err != nil {
		return fmt.Errorf("make %q: %w", f.Path, err)
	}
	if f.Durable {
		if err := unix.Fsync(at); err != nil {
			return fmt.Errorf("sync %q: %w", dir.Name(), err)
		}
	}
	return nil
}

// fill writes a new file under a temporary name.
func (f *File) fill(ctx context.Context, at int, temp string) error {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, temp, flags, 0o600)
	if errors.Is(err, unix.ENOENT) {
		return nil // the directory was removed meanwhile: see create
	}
	if err != nil {
		return err
	}
	o := &opened{file: os.NewFile(uintptr(fd), filepath.Join(filepath.Dir(f.Path), temp))}
	err = f.guard(o, true, func(tx *bolt.Tx) error {
		if err := f.writeInfo(tx); err != nil {
			return err
		}
		if f.Fresh == nil {
			return nil
		}
		return f.Fresh(ctx, tx)
	})
	return errors.Join(err, o.close())
}

func unlinkat(at int, name string) error {
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// SetAside renames the file, damaged or not, and returns the new path, which is in the same directory.
// Without a file it returns ErrNotFound.
func (f *File) SetAside(ctx context.Context) (string, error) {
	w := f.Locks.begin(ctx)
	dir, err := f.lockDir(w)
	if err != nil {
		return "", fmt.Errorf("set aside %q: %w", f.Path, err)
	}
	defer dir.Close() //nolint:errcheck // a directory opened for reading
	o, err := f.openLocked(w, true)
	if errors.Is(err, ErrBusy) {
		return "", fmt.Errorf("set aside: %w", err)
	}
	if err == nil && o == nil {
		return "", fmt.Errorf("set aside %q: %w", f.Path, kv.ErrNotFound)
	}
	if o != nil {
		defer o.close() //nolint:errcheck // nothing was written
	}
	aside, err := f.aside(dir, func(name string) error {
		return unix.Renameat2(int(dir.Fd()), f.Name, int(dir.Fd()), name, unix.RENAME_NOREPLACE)
	})
	if err != nil {
		return "", fmt.Errorf("set aside %q: %w", f.Path, err)
	}
	return aside, nil
}

// aside gives the file another name by call, which fails with EEXIST for one in use.
func (f *File) aside(dir *os.File, call func(name string) error) (string, error) {
	base := f.Name + ".damaged-" + time.Now().UTC().Format("20060102T150405")
	for i := 0; ; i++ {
		name := base
		if i > 0 {
			name = fmt.Sprintf("%s-%d", base, i)
		}
		if err := call(name); !errors.Is(err, unix.EEXIST) {
			return filepath.Join(dir.Name(), name), err
		}
	}
}
