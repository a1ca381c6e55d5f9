package leasing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// LeaseFiles repeats the leases of pools in files for another program. A release removes
// the file; see store.Mirror.
type LeaseFiles interface {
	// Serves reports whether a pool can have files.
	Serves(h *roles.Host, id store.PoolID) bool
	// Import imports the other program's files, before the first lease and after a
	// FileError.
	Import(ctx context.Context, h *roles.Host, id store.PoolID) error
	// Create makes a lease's file. If the address has another file, the error is a
	// FileError.
	Create(ctx context.Context, h *roles.Host, id store.PoolID, l store.Lease) error
	// Missing returns the leases whose files were made and do not exist.
	Missing(id store.PoolID, leases []store.Lease) []store.Lease
}

// FileError means that an address has a file of another program.
type FileError struct {
	Path    string
	Address netip.Addr
}

func (e *FileError) Error() string {
	return fmt.Sprintf("address %s: %v: file %q belongs to another program", e.Address, store.ErrTaken, e.Path)
}

// Is makes it an ErrTaken.
func (e *FileError) Is(target error) bool { return target == store.ErrTaken }

// Mirrors reports whether the leases of a network are repeated in files.
func (a *Allocator) Mirrors(h *roles.Host, network string) bool {
	return a.Files != nil && a.Files.Serves(h, a.ID(network))
}

// createFiles makes the files of new leases. After an error no lease is left.
func (a *Allocator) createFiles(ctx context.Context, h *roles.Host, t *attempt, grants []Grant) error {
	for _, g := range grants {
		l := t.lease
		l.Address = g.addr
		if err := a.Files.Create(ctx, h, a.ID(l.Owner.Network), l); err != nil {
			return errors.Join(err, deleteAll(ctx, h, l.Owner))
		}
	}
	return nil
}
