// Package smallfile reads and replaces small files as a whole. It is safe for
// files that other programs created: a FIFO does not block the reader, a device
// is refused, and reading stops at a size limit.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTooLarge means that the file is larger than the limit.
var ErrTooLarge = errors.New("file too large")

// ErrWritable means that users other than root and the process's own can write the file.
var ErrWritable = errors.New("others can write it")

// errIrregular means that the path is a directory, FIFO, socket or device.
var errIrregular = errors.New("no regular file")

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) { return read(path, limit, 0) }

// ReadOwn is Read, but returns an error if the last element of the path is a
// symbolic link. Use it for directories in which other users can create links.
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

// ReadTrusted is ReadIn, but returns ErrWritable if users other than the process's own and root can have written the file.
func ReadTrusted(dir *os.Root, name string, limit int64) ([]byte, error) {
	fi, b, err := readIn(dir, name, limit)
	if err == nil {
		err = Trusted(filepath.Join(dir.Name(), name), fi)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// ReadIn is Read for a file below a directory. Neither the name nor a symbolic link can lead outside the directory.
func ReadIn(dir *os.Root, name string, limit int64) ([]byte, error) {
	_, b, err := readIn(dir, name, limit)
	return b, err
}

func readIn(dir *os.Root, name string, limit int64) (fs.FileInfo, []byte, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return content(f, filepath.Join(dir.Name(), name), limit)
}

// Trusted returns ErrWritable if users other than the process's own and root
// can write the file or directory. Write permission for the process's own group
// and for root's group is accepted: with umask 002 every file is writable for
// its group.
func Trusted(path string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: its owner is user %d (chown root)", ErrWritable, st.Uid)}
	}
	if st.Mode&unix.S_IWGRP != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid() {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: group %d has write permission (chmod g-w)", ErrWritable, st.Gid)}
	}
	if st.Mode&unix.S_IWOTH != 0 {
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: all users have write permission (chmod o-w)", ErrWritable)}
	}
	return nil
}

// content reads an open file.
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

// Replace writes a file atomically: a reader sees either the old or the new
// content. The new content survives a crash of the program, but possibly not
// one of the machine.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, nil, false)
}

// ReplaceSynced is Replace with a sync to disk: when it returns, the new
// content survives a power failure.
func ReplaceSynced(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, nil, true)
}

// Rewrite is ReplaceSynced for an existing file, which keeps its mode and owner. If
// the path is a symbolic link, Rewrite replaces the file that the link points to.
func Rewrite(path string, content []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	owner, _ := fi.Sys().(*syscall.Stat_t)
	return replace(path, content, fi.Mode().Perm(), owner, true)
}

// Unfinished reports whether a name is that of a temporary file of Replace, which a killed process leaves, and returns
// the name of the file that it was to replace.
func Unfinished(name string) (of string, ok bool) {
	name, ok = strings.CutPrefix(name, ".")
	at := strings.LastIndexByte(name, '.')
	if !ok || at <= 0 {
		return "", false
	}
	_, err := strconv.ParseUint(name[at+1:], 10, 64)
	return name[:at], err == nil
}

// replace writes a file. The process's user owns it if owner is nil.
func replace(path string, content []byte, mode fs.FileMode, owner *syscall.Stat_t, synced bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && owner != nil {
		err = f.Chown(int(owner.Uid), int(owner.Gid))
	}
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
