package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// addition is one ADD of an interface role at work, under the attachment's lock.
type addition struct {
	work
	// ipam is the IPAM plugin's type.
	ipam string
}

// addressFirst gets the addresses and then makes everything at once.
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
		return errors.Join(err, undo) // the address may be in use: it stays taken until DEL
	}
	return errors.Join(err, a.release(ctx))
}

// linkFirst makes the link, calls an IPAM plugin that uses it, and makes the rest. The record stays pending until then.
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

// orUndo undoes what was recorded if err is not nil.
func (a *addition) orUndo(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, a.undo(ctx))
}

// undo undoes what was recorded. A failed Apply undoes its own changes; the inverses
// run once more in case that failed, and the record stays if they fail too.
func (a *addition) undo(ctx context.Context) error {
	if a.rec == nil {
		return nil
	}
	return record.Remove(context.WithoutCancel(ctx), a.h, a.rec, a.ns)
}

// addresses calls the IPAM plugin.
func (a *addition) addresses(ctx context.Context) (*roles.Result, error) {
	r, err := a.h.Delegate.Add(ctx, a.ipam, a.req)
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 {
		return nil, errors.Join(fmt.Errorf("ipam plugin %q: returned no IP addresses", a.ipam), a.release(ctx))
	}
	return r, nil
}

// release releases the addresses.
func (a *addition) release(ctx context.Context) error {
	return a.h.Delegate.Del(context.WithoutCancel(ctx), a.ipam, a.req)
}
