package boltfile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrBusy means that a lock was not free before the deadline. The text names the holder.
	ErrBusy = errors.New("busy")
	// ErrUnwritable means that a file cannot be written, because its disk is full, mounted read-only,
	// or fails. The file can still be read.
	ErrUnwritable = errors.New("cannot be written")
	// ErrSchema means that a newer program changed the format of the file.
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

// unwritable wraps an error of the disk with ErrUnwritable.
func unwritable(err error) error {
	if isUnwritable(err) && !errors.Is(err, ErrUnwritable) {
		return fmt.Errorf("%w: %w", ErrUnwritable, err)
	}
	return err
}
