package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// addition is one ADD of an interface role. Its caller holds the attachment's lock.
type addition struct {
	work
	// ipam is the IPAM plugin's type.
	ipam string
}

// addressFirst gets the addresses, and then makes all objects at once.
func (a *addition) addressFirst(ctx context.Context) error {
	if a.ipam == "" {
		return a.orUndo(ctx, a.build(ctx, store.Done))
	}
	var err error
	a.in.IPAM, err = a.addresses(ctx)
	if err != nil {
		return err
	}
	err = a.build(ctx, store.Done)
	if err == nil {
		return nil
	}
	if undo := a.undo(ctx); undo != nil {
		return errors.Join(err, undo) // the address may be in use: keep it until DEL
	}
	return errors.Join(err, a.release(ctx))
}

// linkFirst makes the link, calls an IPAM plugin that uses the link, and makes the other
// objects. The record is pending until all are made.
func (a *addition) linkFirst(ctx context.Context) error {
	if err := a.build(ctx, store.Pending); err != nil {
		return a.orUndo(ctx, err)
	}
	var err error
	a.in.IPAM, err = a.addresses(ctx)
	if err != nil {
		return a.orUndo(ctx, err)
	}
	if err := a.build(ctx, store.Done); err != nil {
		return a.orUndo(ctx, errors.Join(err, a.release(ctx)))
	}
	return nil
}

// orUndo undoes the recorded changes if err is not nil.
func (a *addition) orUndo(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, a.undo(ctx))
}

// undo undoes the recorded changes. A failed Apply has undone its own changes; undo runs
// the inverses again in case this failed. The record stays if they fail again.
func (a *addition) undo(ctx context.Context) error {
	if a.rec == nil {
		return nil
	}
	return attachment.Remove(context.WithoutCancel(ctx), a.h, a.rec, a.ns)
}

// addresses calls the IPAM plugin.
func (a *addition) addresses(ctx context.Context) (*roles.Result, error) {
	r, err := a.h.Delegate.Add(ctx, a.ipam, a.req)
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 && !bringsAddresses(a.role) {
		return nil, errors.Join(fmt.Errorf("ipam plugin %q: returned no IP addresses", a.ipam), a.release(ctx))
	}
	if !a.h.Delegate.Moves(a.ipam, a.req) {
		return r, nil
	}
	err = a.h.Store.View(ctx, func(tx *store.Tx) error {
		leases, err := tx.LeasesOf(a.in.Key)
		a.in.Quiet = slices.ContainsFunc(leases, func(l store.Lease) bool { return l.Quiet })
		return err
	})
	if err != nil {
		return nil, errors.Join(err, a.release(ctx))
	}
	return r, nil
}

// release releases the addresses.
func (a *addition) release(ctx context.Context) error {
	return a.h.Delegate.Del(context.WithoutCancel(ctx), a.ipam, a.req)
}
