package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// addition is one ADD at work, under the attachment's lock.
type addition struct {
	*Handler
	h   *roles.Host
	req *roles.Request
	in  *Input
	ns  *netops.Namespace
	// rec is the attachment's record as far as it was written.
	rec *store.Attachment
	// made is what the link's stage made, for an IPAM plugin that talks over it.
	made *planned
}

// planned is a wiring and the changes that lead to it.
type planned struct {
	wiring  *Wiring
	changes []netops.Change
}

// addressFirst asks IPAM and makes everything in one go.
func (a *addition) addressFirst(ctx context.Context) error {
	if a.role.IPAM() == "" {
		return a.orUndo(ctx, a.build(ctx, store.Done))
	}
	var err error
	if a.in.IPAM, err = a.addresses(ctx); err != nil {
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

// linkFirst makes the link, asks an IPAM plugin that talks over it, and makes
// the rest. The record stays pending until then.
func (a *addition) linkFirst(ctx context.Context) error {
	if err := a.build(ctx, store.Pending); err != nil {
		return a.orUndo(ctx, err)
	}
	var err error
	if a.in.IPAM, err = a.addresses(ctx); err != nil {
		return a.orUndo(ctx, err)
	}
	if err := a.build(ctx, store.Done); err != nil {
		return a.orUndo(ctx, errors.Join(err, a.release(ctx)))
	}
	return nil
}

// orUndo takes away what was recorded when something failed.
func (a *addition) orUndo(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, a.undo(ctx))
}

// undo takes away what was recorded. What a failed Apply made it has undone
// itself; the inverses are run once more in case that failed, and the record
// stays if they fail too.
func (a *addition) undo(ctx context.Context) error {
	if a.rec == nil {
		return nil
	}
	return node.Remove(context.WithoutCancel(ctx), a.h, a.rec, a.ns)
}

// addresses asks the IPAM plugin.
func (a *addition) addresses(ctx context.Context) (*roles.Result, error) {
	r, err := a.h.Delegate.Add(ctx, a.role.IPAM(), a.req)
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 {
		return nil, errors.Join(fmt.Errorf("ipam plugin %q: returned no IP addresses", a.role.IPAM()), a.release(ctx))
	}
	return r, nil
}

// release gives the addresses back.
func (a *addition) release(ctx context.Context) error {
	return a.h.Delegate.Del(context.WithoutCancel(ctx), a.role.IPAM(), a.req)
}

// build computes, records and makes, and leaves the record in the state. What
// a dead attachment still holds is taken from it.
func (a *addition) build(ctx context.Context, state store.State) error {
	err := a.buildOnce(ctx, state)
	if freed, reapErr := a.freed(ctx, err); !freed || reapErr != nil {
		return errors.Join(err, reapErr)
	}
	a.in.Observed = nil
	return a.buildOnce(ctx, state)
}

// buildOnce works under the read lock of the shared objects first; when these
// need changing themselves, again under the write lock.
func (a *addition) buildOnce(ctx context.Context, state store.State) error {
	for _, exclusive := range []bool{false, true} {
		if err := a.buildLocked(ctx, state, exclusive); !errors.Is(err, errNeedsExclusive) {
			return err
		}
	}
	return fmt.Errorf("%w: shared objects changed while they were locked", roles.ErrTryAgain)
}

// errNeedsExclusive never leaves this package.
var errNeedsExclusive = errors.New("shared objects need changing")

func (a *addition) buildLocked(ctx context.Context, state store.State, exclusive bool) error {
	unlock, err := lockShared(ctx, a.h, a.role.Shared(), exclusive)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := a.plan(ctx)
	if err != nil {
		return err
	}
	if !exclusive && p.touchesShared() {
		return errNeedsExclusive
	}
	return a.make(ctx, p, state)
}

// plan observes, computes the wiring and what leads to it. It changes nothing.
func (a *addition) plan(ctx context.Context) (*planned, error) {
	if err := a.role.Observe(ctx, a.h, a.in, a.ns); err != nil {
		return nil, err
	}
	w, err := a.role.Wire(a.in)
	if err != nil {
		return nil, err
	}
	spec := w.Spec
	if a.made != nil {
		spec = spec.Beyond(a.made.wiring.Spec)
	}
	changes, err := a.h.Net.Plan(ctx, spec, a.ns)
	return &planned{wiring: w, changes: changes}, err
}

// make records the changes as pending, applies them and records the state.
func (a *addition) make(ctx context.Context, p *planned, state store.State) error {
	rec, err := a.record(p)
	if err != nil {
		return err
	}
	err = a.h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := node.SameState(tx, a.in.state); err != nil {
			return err
		}
		if err := a.claim(tx, p.wiring.Claims); err != nil {
			return err
		}
		if err := node.RecordShared(tx, a.req.Network, a.role.Role(), p.wiring.Spec, p.changes, a.h.Now()); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
	if err != nil {
		return err
	}
	a.rec = rec
	if err := a.h.Net.Apply(ctx, p.changes, a.ns); err != nil {
		return err
	}
	a.made = p
	if state == store.Pending {
		return nil
	}
	rec.Parts[len(rec.Parts)-1].State = state
	rec.Updated = a.h.Now()
	return a.h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := node.SameState(tx, a.in.state); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
}

// record describes the attachment with its part pending.
func (a *addition) record(p *planned) (*store.Attachment, error) {
	undo := p.undoable()
	if a.made != nil {
		undo = append(a.made.undoable(), undo...)
	}
	raw, err := coldjson.Marshal(undo)
	if err != nil {
		return nil, err
	}
	now, w := a.h.Now(), p.wiring
	rec := &store.Attachment{
		Key: a.req.Key(), Pod: a.req.Pod(), Netns: node.ThisNetns(a.req.Netns, a.ns),
		HostLink: w.HostLink, MAC: w.MAC,
		Parts:   []store.Part{{Role: a.role.Role(), State: store.Pending, Changes: raw, Time: now}},
		Created: now, Updated: now, Program: a.h.Program,
	}
	for _, ip := range w.Result.IPs {
		if p, ok := Prefix(ip.Address); ok {
			rec.Addresses = append(rec.Addresses, p)
		}
	}
	for _, r := range w.Result.Routes {
		rec.Routes = append(rec.Routes, routeText(r))
	}
	return rec, nil
}

// undoable keeps the changes that DEL has to undo.
func (p *planned) undoable() []netops.Change {
	var out []netops.Change
	for _, c := range p.changes {
		if c.Undo != nil {
			out = append(out, c)
		}
	}
	return out
}

// touchesShared tells whether a shared object is to be changed.
func (p *planned) touchesShared() bool {
	for _, c := range p.changes {
		if c.Do.Object.IsShared() {
			return true
		}
	}
	return false
}
