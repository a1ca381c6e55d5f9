package record

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("not found")
	// ErrTaken: another owner holds the address or claim; TakenError names it.
	ErrTaken = errors.New("taken")
	// ErrDamaged: the file or a record in it cannot be read.
	ErrDamaged = errors.New("damaged state file")
	// ErrInvalid: a record has a field that cannot be stored.
	ErrInvalid = errors.New("invalid record")
	// ErrReadOnly: a write in a read-only transaction, which is a defect of the caller.
	ErrReadOnly = errors.New("transaction is read-only")
)

// TakenError names the owner of an address or a claim that another owner asked for.
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
