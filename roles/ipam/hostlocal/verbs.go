package hostlocal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/leasing"
	"github.com/cnibox/cnibox/roles/migrate"
	"github.com/cnibox/cnibox/store"
)

// Del releases every address of an attachment, also those that were given
// under another configuration. An attachment without any is success.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	// Without an import now, a later import would bring the address back, and only
	// GC would release it.
	importErr := a.importIfPossible(ctx, h, req.Network)
	return errors.Join(importErr, leasing.Release(ctx, h, req))
}

// Check makes sure that the attachment holds an address of every range set,
// and every address of prevResult that is of these sets. Only the first use of
// a pool writes anything: it takes the reference plugin's files over, so
// that the containers in them are found.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.importOnce(ctx, h, req.Network); err != nil {
		return err
	}
	return a.Allocator.Check(ctx, h, req)
}

// GC releases the addresses of this pool whose owners are not in req.Valid, see
// leasing.Allocator.GC.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.importIfPossible(ctx, h, req.Network); err != nil {
		return err
	}
	return a.Allocator.GC(ctx, h, req)
}

// Status is nil when ADD would find an address, see leasing.Allocator.Status. A
// data directory that is still to be taken over must be readable.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := migrate.Importable(ctx, h, a.ID(req.Network)); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return a.Allocator.Status(ctx, h, req)
}

// importOnce takes over the files of the reference plugin, once for a pool.
func (a *handler) importOnce(ctx context.Context, h *roles.Host, network string) error {
	return migrate.ImportOnce(ctx, h, a.ID(network), a.Plan.SetOf, migrate.LockTimeout)
}

// importIfPossible is importOnce for verbs that must not fail because the
// directory cannot be read or stays locked, or because keep.db, which says
// whether it was taken over, is damaged. A later import then brings back an
// address that is released now, and GC releases it again.
func (a *handler) importIfPossible(ctx context.Context, h *roles.Host, network string) error {
	err := migrate.ImportOnce(ctx, h, a.ID(network), a.Plan.SetOf, migrate.BriefLockTimeout)
	if errors.Is(err, migrate.ErrDirectory) || errors.Is(err, store.ErrDamaged) {
		h.Log.Warn("going on without the leases of a host-local directory", "error", err)
		return nil
	}
	return err
}
