package boltfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// oldSuffix is added to the name of a full file of Append.
const oldSuffix = ".old"

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

// Append appends one line to a text file. A file that has limit bytes is renamed to name + oldSuffix first, in
// place of an older one. Append waits for no lock and does not sync: the kernel appends each write as a whole.
// Without create, a missing directory is fs.ErrNotExist.
func (d *Dir) Append(create bool, name string, line []byte, limit int64) error {
	err := d.in(create, func(at int) error {
		fd, err := openLog(at, name)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // the write has its own error
		full, err := rotate(at, fd, name, limit)
		if err != nil {
			return err
		}
		if full {
			next, err := openLog(at, name)
			if err != nil {
				return err
			}
			_ = unix.Close(fd)
			fd = next
		}
		_, err = unix.Write(fd, line)
		return err
	})
	if err != nil {
		return fmt.Errorf("append to %q: %w", filepath.Join(d.path, name), err)
	}
	return nil
}

func openLog(at int, name string) (int, error) {
	return openat(at, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
}

// rotate renames the open file if it is full. Of the processes that see a full file one renames it.
func rotate(at, fd int, name string, limit int64) (full bool, err error) {
	var st, named unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size < limit {
		return false, err
	}
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return true, nil
	}
	if err := unix.Fstatat(at, name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil || named.Ino != st.Ino {
		return true, nil
	}
	return true, unix.Renameat(at, name, at, name+oldSuffix)
}

// Lines returns the lines that Append wrote to the file and to the one before it, oldest first. The lines are
// not checked. Nothing is created, and missing files have no lines.
func (d *Dir) Lines(name string, limit int64) ([][]byte, error) {
	var lines [][]byte
	for _, name := range []string{name + oldSuffix, name} {
		err := d.in(false, func(at int) error {
			fd, err := openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open %q: %w", filepath.Join(d.path, name), err)
			}
			f := os.NewFile(uintptr(fd), name)
			defer f.Close()
			b, err := io.ReadAll(io.LimitReader(f, 2*limit))
			lines = append(lines, bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))...)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return lines, nil
}
