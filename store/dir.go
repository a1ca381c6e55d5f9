package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// openDir opens the directory of path and checks, from the first of our own
// components on, that nobody else can have put it there: no symbolic link, our
// own user's, writable by nobody else. With make, what is missing is made. own
// counts the components of path that are ours.
func openDir(path string, own int, mk bool) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("open directory %q: %w: not an absolute path", path, ErrInvalid)
	}
	path = filepath.Clean(path)
	fd, err := openPath(path, own, mk)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openPath is openDir for a clean, absolute path.
func openPath(path string, own int, mk bool) (int, error) {
	if own > 1 {
		parent, err := openPath(filepath.Dir(path), own-1, mk)
		if err != nil {
			return -1, err
		}
		defer unix.Close(parent) //nolint:errcheck // a directory opened for reading
		return openOwn(parent, filepath.Base(path), path, mk)
	}
	if mk {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return -1, fmt.Errorf("make directory: %w", err)
		}
	}
	return openOwn(unix.AT_FDCWD, path, path, mk)
}

// openOwn opens name in the directory at.
func openOwn(at int, name, path string, mk bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, name, flags, 0)
	if errors.Is(err, unix.ENOENT) && mk {
		if err = unix.Mkdirat(at, name, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = openat(at, name, flags, 0)
		}
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("open directory %q: %w: a symbolic link or no directory", path, ErrInvalid)
	}
	if err != nil {
		return -1, fmt.Errorf("open directory %q: %w", path, err)
	}
	if _, err := checkOwned(fd, path); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// checkOwned refuses what another user owns or may write. It returns what it saw.
func checkOwned(fd int, path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return st, fmt.Errorf("stat %q: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return st, fmt.Errorf("open %q: %w: owned by user %d, not by %d", path, ErrInvalid, st.Uid, os.Geteuid())
	}
	if st.Mode&0o022 != 0 {
		return st, fmt.Errorf("open %q: %w: mode %04o lets others write: chmod go-w it", path, ErrInvalid, st.Mode&0o7777)
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

// isBootID tells whether a text has the form of /proc/sys/kernel/random/boot_id,
// 8-4-4-4-12 hexadecimal digits; nothing else becomes a directory's name, or is
// taken for an old boot's.
func isBootID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// runDir opens RunDir/<boot id>. When it makes it, it removes other boots'
// directories: what they hold died with their boot.
func (s *Store) runDir(mk bool) (*os.File, error) {
	if !isBootID(s.o.BootID) {
		return nil, fmt.Errorf("open store: boot id %q: %w: not of the form of a UUID", s.o.BootID, ErrInvalid)
	}
	path := filepath.Join(s.o.RunDir, s.o.BootID)
	dir, err := openDir(path, 2, false)
	if !mk || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if dir, err = openDir(path, 2, true); err != nil {
		return nil, err
	}
	if err := s.removeOldBoots(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// keptDir is the run directory, kept open from its first use on.
type keptDir struct {
	mu   sync.Mutex
	file *os.File
}

// inRunDir opens something in the run directory. The directory as it is kept may not
// be the one at its path any more: who opened a file finds out by its path, once it
// is locked, and calls forgetRunDir; an error is not believed before the directory was
// opened anew.
func (s *Store) inRunDir(mk bool, open func(at int) error) error {
	s.dir.mu.Lock()
	defer s.dir.mu.Unlock()
	if s.dir.file != nil && open(int(s.dir.file.Fd())) == nil {
		return nil
	}
	s.dir.forget()
	dir, err := s.runDir(mk)
	if err != nil {
		return err
	}
	s.dir.file = dir
	if err := open(int(dir.Fd())); err != nil {
		s.dir.forget()
		return err
	}
	return nil
}

func (s *Store) forgetRunDir() {
	s.dir.mu.Lock()
	defer s.dir.mu.Unlock()
	s.dir.forget()
}

func (d *keptDir) forget() {
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
}

func (s *Store) stateDir(mk bool) (*os.File, error) { return openDir(s.o.StateDir, 1, mk) }

func (s *Store) removeOldBoots() error {
	root, err := os.OpenRoot(s.o.RunDir)
	if err != nil {
		return fmt.Errorf("remove old boots: %w", err)
	}
	defer root.Close() //nolint:errcheck // a directory opened for reading
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("remove old boots: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && isBootID(e.Name()) && e.Name() != s.o.BootID {
			if err := root.RemoveAll(e.Name()); err != nil {
				return fmt.Errorf("remove old boots: %w", err)
			}
		}
	}
	return nil
}
