package boltfile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrBusy: a lock was not free before the deadline; the text names the holder.
	ErrBusy = errors.New("busy")
	// ErrUnwritable: a file cannot be written: its disk is full, mounted read-only,
	// or fails. Its content is still there and can be read.
	ErrUnwritable = errors.New("cannot be written")
	// ErrSchema: a newer program changed the form of the file.
	ErrSchema = errors.New("state file of a newer schema")
)

// isUnwritable reports whether the kernel refused to write, or to open for writing.
// A file with the immutable attribute gives EPERM.
func isUnwritable(err error) bool {
	for _, errno := range []unix.Errno{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EACCES, unix.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// unwritable makes an error that comes from the disk an ErrUnwritable.
func unwritable(err error) error {
	if isUnwritable(err) && !errors.Is(err, ErrUnwritable) {
		return fmt.Errorf("%w: %w", ErrUnwritable, err)
	}
	return err
}
