package dhcp

import (
	"context"
	"errors"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// directTime bounds an exchange that the plugin makes without a daemon.
const directTime = 10 * time.Second

// Release releases the recorded addresses of an attachment. The plugin calls it when no daemon runs.
func Release(ctx context.Context, h *roles.Host, socket string, key store.Key) error {
	d := directDaemon(ctx, h, socket)
	rec, err := store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) (*store.DHCPLease, error) { return tx.DHCPLease(key) })
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.Is(err, store.ErrDamaged):
		return d.forget(ctx, key) // only this record may be damaged
	case err != nil:
		return err
	}
	return d.endRecorded(ctx, *rec)
}

// Collect releases the recorded addresses of a network's attachments that are not
// valid. The plugin calls it when no daemon runs.
func Collect(ctx context.Context, h *roles.Host, socket string, req *roles.Request) error {
	d := directDaemon(ctx, h, socket)
	recs, err := store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) ([]store.DHCPLease, error) { return tx.DHCPLeases(req.Network) })
	errs := []error{err}
	for _, rec := range recs {
		if !req.IsValid(rec.Owner.ContainerID, rec.Owner.IfName) {
			errs = append(errs, d.endRecorded(ctx, rec))
		}
	}
	return errors.Join(errs...)
}

// directDaemon returns a daemon that only ends leases.
func directDaemon(ctx context.Context, h *roles.Host, socket string) *daemon {
	return newDaemon(ctx, h, socket, Timing{Request: directTime, ResendMax: directTime, Resend: directTime})
}

// endRecorded ends a recorded lease of this socket and this boot. The record of a lease
// that cannot be decoded is deleted.
func (d *daemon) endRecorded(ctx context.Context, rec store.DHCPLease) error {
	if rec.Socket != d.socket || rec.BootID != d.host.Store.BootID() {
		return nil
	}
	l, err := d.newLease(rec)
	if err != nil {
		d.host.Log.Warn("a recorded lease cannot be released", "network", rec.Owner.Network, "container", rec.Owner.ContainerID, "error", err)
		return d.forget(ctx, rec.Owner)
	}
	d.addIdentity(l)
	return d.end(ctx, l)
}
