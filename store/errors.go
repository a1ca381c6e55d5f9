package store

import (
	"fmt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

var (
	// ErrNotFound means that the record does not exist.
	ErrNotFound = kv.ErrNotFound
	// ErrTaken means that another owner, which TakenError names, has the address or claim.
	ErrTaken = kv.ErrTaken
	// ErrBusy means that a lock was not free before the deadline. The text names the holder.
	ErrBusy = boltfile.ErrBusy
	// ErrDamaged means that the file cannot be read. The text has the command that sets it aside.
	ErrDamaged = kv.ErrDamaged
	// ErrUnwritable means that a file cannot be written, because its disk is full, mounted read-only,
	// or fails. The file can still be read.
	ErrUnwritable = boltfile.ErrUnwritable
	// ErrSchema means that a newer program changed the format of the file.
	ErrSchema = boltfile.ErrSchema
	// ErrInvalid means that a record has a field that cannot be stored.
	ErrInvalid = kv.ErrInvalid
)

// TakenError names the present owner of a requested address or claim.
type TakenError = kv.TakenError

// absentError is the ErrNotFound of an attachment. An ADD reads three records that usually do not
// exist, so the text is made only on demand.
type absentError struct{ key Key }

// Error returns "attachment …: not found".
func (e *absentError) Error() string {
	return fmt.Sprintf("attachment %s: %v", e.key.Describe(), ErrNotFound)
}

// Unwrap makes it an ErrNotFound.
func (e *absentError) Unwrap() error { return ErrNotFound }
