package dhcp

import (
	"context"
	"errors"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// directTime bounds an exchange without a daemon.
const directTime = 10 * time.Second

// ReleaseDirect gives back what is on record for an attachment, without a
// daemon: none runs that would.
func ReleaseDirect(ctx context.Context, h *roles.Host, socket string, key store.Key) error {
	return directly(ctx, h, socket, key.Network, func(k store.Key) bool { return k == key })
}

// CollectDirect gives back what is on record for attachments of a network that
// are not valid, without a daemon.
func CollectDirect(ctx context.Context, h *roles.Host, socket string, req *roles.Request) error {
	return directly(ctx, h, socket, req.Network, func(k store.Key) bool { return !req.IsValid(k.ContainerID, k.IfName) })
}

func directly(ctx context.Context, h *roles.Host, socket, network string, goes func(store.Key) bool) error {
	var recs []store.DHCPLease
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		recs, err = tx.DHCPLeases(network)
		return err
	})
	d := newDaemon(ctx, h, socket, timing{request: directTime, resendMax: directTime, resend: directTime})
	errs := []error{err}
	for _, rec := range recs {
		if rec.Socket != socket || rec.BootID != h.Store.BootID() || !goes(rec.Owner) {
			continue
		}
		l, err := d.newLease(rec)
		if err == nil {
			d.enlist(l)
			err = d.end(ctx, l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
