package kv

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound means that the record does not exist.
	ErrNotFound = errors.New("not found")
	// ErrTaken means that another owner, which TakenError names, has the address or claim.
	ErrTaken = errors.New("taken")
	// ErrDamaged means that the file or a record in it cannot be read.
	ErrDamaged = errors.New("damaged state file")
	// ErrInvalid means that a record has a field that cannot be stored.
	ErrInvalid = errors.New("invalid record")
	// ErrReadOnly means that the caller writes in a read-only transaction, which is a defect of the
	// caller.
	ErrReadOnly = errors.New("transaction is read-only")
)

// TakenError names the present owner of a requested address or claim.
type TakenError struct {
	What  string
	Owner Key
}

// Error returns "what: taken by …" with the owner's names.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%s: taken by %q of container %q on network %q", e.What, e.Owner.IfName, e.Owner.ContainerID, e.Owner.Network)
}

// Is makes every TakenError an ErrTaken.
func (e *TakenError) Is(target error) bool { return target == ErrTaken }
