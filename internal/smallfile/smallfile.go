// Package smallfile reads and replaces files that are read whole. What others
// may have put there does no harm: a FIFO does not block, a device is refused,
// and a file without an end is refused at its bound.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrTooLarge: the file is longer than its bound.
var ErrTooLarge = errors.New("file too large")

// errIrregular: a directory, FIFO, socket or device.
var errIrregular = errors.New("no regular file")

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) { return read(path, limit, 0) }

// ReadOwn is Read, but the path's last part must be no symbolic link: for
// directories in which others may make one.
func ReadOwn(path string, limit int64) ([]byte, error) { return read(path, limit, unix.O_NOFOLLOW) }

func read(path string, limit int64, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errIrregular}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)}
	}
	return b, err
}

// Replace writes a file in one piece: a reader sees the old content or the new
// one. It lasts beyond a crash of the program, not of the machine.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, false)
}

// ReplaceSynced is Replace that lasts beyond a power cut once it has returned.
func ReplaceSynced(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, true)
}

func replace(path string, content []byte, mode fs.FileMode, synced bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && synced {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if !synced {
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
