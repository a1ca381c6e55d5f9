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
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTooLarge: the file is longer than its bound.
var ErrTooLarge = errors.New("file too large")

// ErrWritable: others than we and root can write the file.
var ErrWritable = errors.New("others can write it")

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
	_, b, err := content(f, path, limit)
	return b, err
}

// ReadTrusted is Read of a file below a directory, which it cannot leave, neither
// by its name nor by links. ErrWritable: others than we and root could have
// written it.
func ReadTrusted(dir *os.Root, name string, limit int64) ([]byte, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path := filepath.Join(dir.Name(), name)
	fi, b, err := content(f, path, limit)
	if err == nil {
		err = Trusted(path, fi)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Trusted is nil for a file or directory that only we and root can write, and the
// members of our group and root's: where umask is 002, all files are their group's
// to write.
func Trusted(path string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: it is user %d's (chown root)", ErrWritable, st.Uid)}
	}
	if st.Mode&unix.S_IWGRP != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid() {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: group %d may (chmod g-w)", ErrWritable, st.Gid)}
	}
	if st.Mode&unix.S_IWOTH != 0 {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: everybody may (chmod o-w)", ErrWritable)}
	}
	return nil
}

// content reads what is opened.
func content(f *os.File, path string, limit int64) (fs.FileInfo, []byte, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: errIrregular}
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)}
	}
	return fi, b, err
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
