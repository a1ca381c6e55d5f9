package hostlocal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// Del releases all addresses of an attachment, also those of an earlier configuration. An
// attachment without addresses is not an error; it may have files in dataDir, of the reference, of
// before the boot, or of a record that was lost.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if a.Mirrors(h, req.Network) {
		released, err := leasing.Release(ctx, h, req)
		if err != nil || len(released) > 0 {
			return err
		}
		err = leasefiles.RemoveFilesOf(ctx, a.ID(req.Network), req.Key())
		if !errors.Is(err, leasefiles.ErrDirectory) {
			return err
		}
		h.Log.Warn("the files of an attachment stay until GC", "container", req.ContainerID, "ifname", req.IfName, "error", err)
	}
	// Without this import, a later import would lease the address again, until GC.
	_, importErr := a.importIfPossible(ctx, h, req.Network)
	_, err := leasing.Release(ctx, h, req)
	return errors.Join(importErr, err)
}

// Check verifies that the attachment has an address of each range set, and every address of
// prevResult that is in these sets. The attachments of the reference plugin are known after an
// import of its files.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	err := a.Allocator.Check(ctx, h, req)
	if !errors.Is(err, roles.ErrCheck) {
		return err
	}
	if err := a.importOnce(ctx, h, req.Network); err != nil {
		return err
	}
	return a.Allocator.Check(ctx, h, req)
}

// GC releases the addresses of this pool whose owners are not in req.Valid. See
// leasing.Allocator.GC.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	imported, err := a.importIfPossible(ctx, h, req.Network)
	if err != nil {
		return err
	}
	if imported && a.Mirrors(h, req.Network) {
		if err := leasefiles.RemoveInvalidFiles(ctx, h, a.ID(req.Network), req); err != nil {
			h.Log.Warn("files of detached containers stay until the next GC", "error", err)
		}
	}
	return a.Allocator.GC(ctx, h, req)
}

// Status returns nil if an address is available for the next ADD. See leasing.Allocator.Status. A
// data directory that was not imported yet must be readable.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := leasefiles.Importable(ctx, h, a.ID(req.Network)); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return a.Allocator.Status(ctx, h, req)
}

// importOnce imports the files of the reference plugin, once for a pool.
func (a *handler) importOnce(ctx context.Context, h *roles.Host, network string) error {
	return leasefiles.ImportOnce(ctx, h, a.ID(network), a.Plan.SetOf, leasefiles.LockTimeout)
}

// importIfPossible is importOnce for verbs that must succeed although the directory cannot be read,
// is locked for long, or keep.db, which records the import, is damaged. A later import may then lease
// an address again that the verb releases, until GC.
func (a *handler) importIfPossible(ctx context.Context, h *roles.Host, network string) (imported bool, err error) {
	err = leasefiles.ImportOnce(ctx, h, a.ID(network), a.Plan.SetOf, leasefiles.BriefLockTimeout)
	if errors.Is(err, leasefiles.ErrDirectory) || errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrUnwritable) {
		h.Log.Warn("continue without the leases of a host-local directory", "error", err)
		return false, nil
	}
	return err == nil, err
}
