package store

import (
	"fmt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/record"
)

var (
	// ErrNotFound: no such record.
	ErrNotFound = record.ErrNotFound
	// ErrTaken: another owner holds the address or claim; TakenError names it.
	ErrTaken = record.ErrTaken
	// ErrBusy: a lock was not free before the deadline; the text names the holder.
	ErrBusy = boltfile.ErrBusy
	// ErrDamaged: the file cannot be read; the text has the command that sets it aside.
	ErrDamaged = record.ErrDamaged
	// ErrUnwritable: a file cannot be written: its disk is full, mounted read-only, or
	// fails. Its content is still there and can be read.
	ErrUnwritable = boltfile.ErrUnwritable
	// ErrSchema: a newer program changed the form of the file.
	ErrSchema = boltfile.ErrSchema
	// ErrInvalid: a record has a field that cannot be stored.
	ErrInvalid = record.ErrInvalid
)

// TakenError names the owner of an address or a claim that another owner asked for.
type TakenError = record.TakenError

// absentError is the ErrNotFound of an attachment. An ADD looks for three records
// that do not exist, so the text is made only when it is read.
type absentError struct{ key Key }

// Error returns "attachment …: not found".
func (e *absentError) Error() string {
	return fmt.Sprintf("attachment %s: %v", e.key.Describe(), ErrNotFound)
}

// Unwrap makes it an ErrNotFound.
func (e *absentError) Unwrap() error { return ErrNotFound }
