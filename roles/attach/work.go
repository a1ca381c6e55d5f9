package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// work is one role's part of an ADD, under the attachment's lock.
type work struct {
	role SpecBuilder
	// name is the role's.
	name string
	h    *roles.Host
	req  *roles.Request
	in   *Input
	ns   *netops.Namespace
	// on is the record that the part is added to; without one it begins one.
	on *store.Attachment
	// rec is the attachment's record as far as it was written.
	rec *store.Attachment
	// made is what the link's stage made, for an IPAM plugin that talks over it.
	made *planned
}

// planned is a wiring and the changes that lead to it.
type planned struct {
	desired *Desired
	changes []netops.Change
}

// build computes, records and makes, and leaves the record in the state. What
// a dead attachment still holds is taken from it.
func (a *work) build(ctx context.Context, state store.State) error {
	err := a.buildOnce(ctx, state)
	if freed, reapErr := a.reapHolder(ctx, err); !freed || reapErr != nil {
		return errors.Join(err, reapErr)
	}
	a.in.Observed = nil
	return a.buildOnce(ctx, state)
}

// buildOnce works under the read lock of the shared objects first; when these
// need changing themselves, again under the write lock.
func (a *work) buildOnce(ctx context.Context, state store.State) error {
	for _, exclusive := range []bool{false, true} {
		if err := a.buildLocked(ctx, state, exclusive); !errors.Is(err, errNeedsExclusive) {
			return err
		}
	}
	return fmt.Errorf("%w: shared objects changed while they were locked", roles.ErrTryAgain)
}

// errNeedsExclusive never leaves this package.
var errNeedsExclusive = errors.New("shared objects need changing")

func (a *work) buildLocked(ctx context.Context, state store.State, exclusive bool) error {
	unlock, err := lockShared(ctx, a.h, a.role.Shared(), exclusive)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := a.role.(NetnsLocker); ok {
		alone, err := a.h.Store.LockShared(ctx, namespaceLock(a.ns.ID()), true)
		if err != nil {
			return err
		}
		defer alone.Unlock()
	}
	p, err := a.plan(ctx)
	if err != nil {
		return err
	}
	if !exclusive && p.touchesShared() {
		return errNeedsExclusive
	}
	return a.make(ctx, p, state)
}

// NetnsLocker is a role that chooses what it observes to be free in the container's
// namespace, such as a routing table, or shares something in there between
// attachments. Those of one container are made and, where the role is a Chained,
// removed one after the other.
type NetnsLocker interface {
	// NeedsNetnsLock is empty: it marks the role.
	NeedsNetnsLock()
}

// namespaceLock names the lock of a namespace.
func namespaceLock(dev, inode uint64) string {
	return fmt.Sprintf("netns/%d:%d", dev, inode)
}

// plan observes, computes the wiring and what leads to it. It changes nothing.
func (a *work) plan(ctx context.Context) (*planned, error) {
	if err := a.role.Observe(ctx, a.h, a.in, a.ns); err != nil {
		return nil, err
	}
	w, err := a.role.Build(a.in)
	if err != nil {
		return nil, err
	}
	if w.Result == nil {
		w.Result = a.in.Chained
	}
	spec := w.Spec
	if a.made != nil {
		spec = spec.Beyond(a.made.desired.Spec)
	}
	changes, err := a.h.Net.Plan(ctx, spec, a.ns)
	return &planned{desired: w, changes: changes}, err
}

// make records the changes as pending, applies them and records the state. Where
// there are none, because all that is wanted is shared and stands, once is enough.
func (a *work) make(ctx context.Context, p *planned, state store.State) error {
	if a.wantsNothing(p) {
		a.made = p
		return nil
	}
	first := store.Pending
	if len(p.changes) == 0 {
		first = state
	}
	rec, err := a.record(p, first)
	if err != nil {
		return err
	}
	err = a.h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := recovery.SameState(tx, a.in.state); err != nil {
			return err
		}
		if err := a.claim(tx, p.desired.Claims); err != nil {
			return err
		}
		if err := record.RecordShared(tx, a.req.Network, a.name, p.desired.Spec, p.changes, a.h.Now()); err != nil {
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
	if state == first {
		return nil
	}
	rec.Parts[len(rec.Parts)-1].State = state
	rec.Updated = a.h.Now()
	return a.h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := recovery.SameState(tx, a.in.state); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
}

// wantsNothing tells whether a chained role's part would say nothing but that there
// was a call: nothing is wanted of the kernel or of the node, and the record that it
// would be added to tells that the attachment is ours. DEL finds nothing to undo
// either way, without a transaction.
func (a *work) wantsNothing(p *planned) bool {
	w := p.desired
	return a.on != nil && len(w.Spec.Objects) == 0 && len(p.changes) == 0 && len(w.Claims) == 0 && w.MAC == ""
}

// record describes the attachment with its part in a state.
func (a *work) record(p *planned, state store.State) (*store.Attachment, error) {
	undo := p.undoable()
	if a.made != nil {
		undo = append(a.made.undoable(), undo...)
	}
	raw, err := coldjson.Marshal(undo)
	if err != nil {
		return nil, err
	}
	now, w := a.h.Now(), p.desired
	part := store.Part{Role: a.name, State: state, Changes: raw, Claims: kinds(w.Claims), Time: now}
	if a.on != nil {
		rec := *a.on
		rec.Parts, rec.MAC, rec.Updated = append(slices.Clone(rec.Parts), part), cmp.Or(w.MAC, rec.MAC), now
		return &rec, nil
	}
	rec := &store.Attachment{
		Key: a.req.Key(), Pod: a.req.Pod(), Netns: record.ThisNetns(a.req.Netns, a.ns),
		HostLink: w.HostLink, MAC: w.MAC, Note: w.Note, Parts: []store.Part{part},
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
