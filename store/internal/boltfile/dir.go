package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// Dir is a directory of state files. Only this program's user may write to it.
type Dir struct {
	path string
	// own is the number of the last components of path that are checked. See OpenDir.
	own int
	// boot is nil for a directory whose files survive a reboot.
	boot *bootDir
	// file is the open directory of a boot, from its first use on.
	mu   sync.Mutex
	file *os.File
}

// NewDir returns a directory whose files survive a reboot.
func NewDir(path string) *Dir { return &Dir{path: path, own: 1} }

// open opens the directory. With create, a missing one is created.
func (d *Dir) open(create bool) (*os.File, error) {
	if d.boot != nil {
		if err := d.boot.check(); err != nil {
			return nil, err
		}
	}
	dir, err := OpenDir(d.path, d.own, create && d.boot == nil)
	if d.boot == nil || !create || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if dir, err = OpenDir(d.path, d.own, true); err != nil {
		return nil, err
	}
	if err := d.boot.removeOthers(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// in calls open with the directory's descriptor. A directory that was kept open may have been replaced.
// So after an error of open, in opens the directory again and repeats the call, and a caller whose
// locked file is not at its path calls forget.
func (d *Dir) in(create bool, open func(at int) error) error {
	if d.boot == nil {
		dir, err := d.open(create)
		if err != nil {
			return err
		}
		defer dir.Close() //nolint:errcheck // a directory opened for reading
		return open(int(dir.Fd()))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil && open(int(d.file.Fd())) == nil {
		return nil
	}
	d.drop()
	dir, err := d.open(create)
	if err != nil {
		return err
	}
	d.file = dir
	if err := open(int(dir.Fd())); err != nil {
		d.drop()
		return err
	}
	return nil
}

// forget closes the directory, so that the next use looks its path up again.
func (d *Dir) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop()
}

func (d *Dir) drop() {
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
}

// OpenDir opens a directory by its absolute path. Each of the last own components
// must be a directory and not a symbolic link, must belong to this program's user,
// and must not be writable for other users. With create, missing directories are created.
func OpenDir(path string, own int, create bool) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, dirError(fmt.Sprintf("open directory %q: not an absolute path", path))
	}
	path = filepath.Clean(path)
	fd, err := openPath(path, own, create)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openPath is OpenDir for a clean, absolute path.
func openPath(path string, own int, create bool) (int, error) {
	if own > 1 {
		parent, err := openPath(filepath.Dir(path), own-1, create)
		if err != nil {
			return -1, err
		}
		defer unix.Close(parent) //nolint:errcheck // a directory opened for reading
		return openChecked(parent, filepath.Base(path), path, create)
	}
	if create {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return -1, fmt.Errorf("make directory: %w", err)
		}
	}
	return openChecked(unix.AT_FDCWD, path, path, create)
}

// openChecked opens the directory name in the directory at and checks its owner.
func openChecked(at int, name, path string, create bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, name, flags, 0)
	if errors.Is(err, unix.ENOENT) && create {
		if err = unix.Mkdirat(at, name, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = openat(at, name, flags, 0)
		}
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, dirError(fmt.Sprintf("open directory %q: a symbolic link or not a directory", path))
	}
	if err != nil {
		return -1, fmt.Errorf("open directory %q: %w", path, err)
	}
	if _, err := checkOwned(fd, path); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// dirError is an ErrInvalid of a directory. Its text says nothing of a record.
type dirError string

func (e dirError) Error() string      { return string(e) }
func (dirError) Is(target error) bool { return target == kv.ErrInvalid } //nolint:errorlint // an Is compares as errors.Is does

// checkOwned returns an error for a directory that another user owns or can write to.
func checkOwned(fd int, path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return st, fmt.Errorf("stat %q: %w", path, err)
	}
	if euid := os.Geteuid(); euid != 0 && st.Uid == 0 {
		return st, fmt.Errorf("open directory %q: owned by root: %w", path, unix.EACCES)
	} else if int(st.Uid) != euid {
		return st, dirError(fmt.Sprintf("open directory %q: owned by user %d, not by %d", path, st.Uid, euid))
	}
	if st.Mode&0o022 != 0 {
		return st, dirError(fmt.Sprintf("open directory %q: mode %04o lets others write: chmod go-w it", path, st.Mode&0o7777))
	}
	return st, nil
}

// openat is openat(2), repeated when a signal interrupts it.
func openat(at int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
