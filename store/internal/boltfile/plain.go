package boltfile

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WithPlain calls fn with the descriptor of a small file that is not a database, and locks the file
// meanwhile. It creates a missing file, but no directory: the error is then fs.ErrNotExist.
func (d *Dir) WithPlain(ctx context.Context, locks *Locks, name string, fn func(fd int) error) error {
	f := &byteFile{path: filepath.Join(d.path, name)}
	err := d.in(false, func(at int) (err error) {
		const flags = unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
		f.fd, err = openat(at, name, flags, 0o600)
		return err
	})
	if err != nil {
		return fmt.Errorf("open %q: %w", f.path, err)
	}
	if err := locks.begin(ctx).acquire(f, exclusive()); err != nil {
		return fmt.Errorf("lock %q: %w", f.path, err)
	}
	defer f.Close() //nolint:errcheck // it also unlocks; the write has its own error
	return fn(f.fd)
}
