package store

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("not found")
	// ErrTaken: another owner holds the address or claim; TakenError names it.
	ErrTaken = errors.New("taken")
	// ErrBusy: a lock was not to be had before the deadline; the text names the holder.
	ErrBusy = errors.New("busy")
	// ErrDamaged: the file cannot be read; the text has the command that sets it aside.
	ErrDamaged = errors.New("damaged state file")
	// ErrUnwritable: a file cannot be written: its disk is full, mounted read-only, or
	// fails. What it held is there still, and can be read.
	ErrUnwritable = errors.New("cannot be written")
	// ErrSchema: the file was written by a newer program that changed its form.
	ErrSchema = errors.New("state file of a newer schema")
	// ErrInvalid: a record has a field that cannot be stored.
	ErrInvalid = errors.New("invalid record")
)

// absentError is the ErrNotFound of an attachment. Its text is made when somebody asks
// for it: an ADD looks for three records that are not there.
type absentError struct{ key Key }

// Error is "attachment …: not found".
func (e *absentError) Error() string {
	return fmt.Sprintf("attachment %s: %v", e.key.describe(), ErrNotFound)
}

// Unwrap makes it an ErrNotFound.
func (e *absentError) Unwrap() error { return ErrNotFound }

// TakenError tells who holds what was asked for.
type TakenError struct {
	What  string
	Owner Key
}

// Error is "what: taken by network/container/ifname".
func (e *TakenError) Error() string {
	return fmt.Sprintf("%s: taken by %q of container %q on network %q", e.What, e.Owner.IfName, e.Owner.ContainerID, e.Owner.Network)
}

// Is makes every TakenError an ErrTaken.
func (e *TakenError) Is(target error) bool { return target == ErrTaken }

// isUnwritable tells whether the kernel refused to write, or to open for writing. EPERM
// is what a file with the immutable attribute gives.
func isUnwritable(err error) bool {
	for _, errno := range []unix.Errno{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EACCES, unix.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// unwritable makes what kept a transaction from being stored an ErrUnwritable, if it was
// the disk.
func unwritable(err error) error {
	if isUnwritable(err) && !errors.Is(err, ErrUnwritable) {
		return fmt.Errorf("%w: %w", ErrUnwritable, err)
	}
	return err
}
