package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// minFree is the free space in bytes that a transaction may need, with room for the file to grow.
const minFree = 64 << 10

// CheckRunDir returns an error that is ErrUnwritable if the file system of the run directory is
// read-only or full. It writes nothing.
func (s *Store) CheckRunDir() error { return checkSpace(s.o.RunDir) }

// CheckStateDir is CheckRunDir for the state directory.
func (s *Store) CheckStateDir() error { return checkSpace(s.o.StateDir) }

// checkSpace checks the file system of a directory, or of its parent if it does not exist yet.
func checkSpace(dir string) error {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for p := dir; errors.Is(err, unix.ENOENT) && p != filepath.Dir(p); {
		p = filepath.Dir(p)
		err = unix.Statfs(p, &st)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read file system of %q: %w", dir, err)
	case st.Flags&unix.ST_RDONLY != 0:
		return fmt.Errorf("%w: %q is on a read-only file system: mount it writable", ErrUnwritable, dir)
	case st.Blocks > 0 && st.Bfree*uint64(st.Bsize) < minFree, st.Files > 0 && st.Ffree == 0:
		return fmt.Errorf("%w: the file system of %q is full: free some space", ErrUnwritable, dir)
	}
	return nil
}
