package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// work is one role's part of an ADD. Its caller holds the attachment's lock.
type work struct {
	role SpecBuilder
	// name is the role's name.
	name string
	h    *roles.Host
	req  *roles.Request
	in   *Input
	ns   *netops.Namespace
	// on is the record to which the part is added; nil means a new record.
	on *store.Attachment
	// rec is the attachment's record as last written.
	rec *store.Attachment
	// filtered is true if network policies apply to the addresses that this part makes.
	filtered bool
	// made is what build has made. It is set before an IPAM plugin that uses the link is
	// called.
	made *planned
}

// planned is a desired state and the changes that lead to it.
type planned struct {
	desired *Desired
	netops.Plan
}

// build computes the desired state, records it, applies it, and leaves the record in the
// given state. If a dead attachment holds a claim, build removes the attachment and tries
// once more.
func (a *work) build(ctx context.Context, state store.State) error {
	err := a.buildShared(ctx, state)
	if freed, reapErr := a.reapHolder(ctx, err); !freed || reapErr != nil {
		return errors.Join(err, reapErr)
	}
	a.in.Observed = nil
	return a.buildShared(ctx, state)
}

// maxNetworks is the number of networks of one container that buildShared tries again for.
const maxNetworks = 16

// buildShared builds again if another attachment of the same container took a claim after Observe looked: a
// runtime can attach a container to its networks in parallel, and a role may share with the container's other
// attachments what it observes that they have.
func (a *work) buildShared(ctx context.Context, state store.State) error {
	for n := 0; ; n++ {
		err := a.buildOnce(ctx, state)
		var taken *store.TakenError
		if n == maxNetworks || !errors.As(err, &taken) || taken.Owner.ContainerID != a.req.ContainerID || taken.Owner == a.req.Key() {
			return err
		}
		a.in.Observed = nil
	}
}

// buildOnce builds under the read lock of the shared objects. If these need a change, it
// begins again under the write lock.
func (a *work) buildOnce(ctx context.Context, state store.State) error {
	for _, exclusive := range []bool{false, true} {
		err := a.buildLocked(ctx, state, exclusive)
		if err == nil {
			a.awaitOperation(ctx)
		}
		if !errors.Is(err, errNeedsExclusive) {
			return err
		}
	}
	return fmt.Errorf("%w: shared objects changed while they were locked", roles.ErrTryAgain)
}

// awaitOperation waits until what was made carries packets, so that the container's first
// one is not lost. It waits without the locks of the shared objects. The attachment is
// complete, so it is kept if the kernel does not bring it into operation in time.
func (a *work) awaitOperation(ctx context.Context) {
	if err := a.h.Net.AwaitOperation(ctx, a.made.Changes, a.ns); err != nil {
		a.h.Log.Warn("the first packets may be lost", "network", a.req.Network, "container", a.req.ContainerID, "ifname", a.req.IfName, "error", err)
	}
}

// errNeedsExclusive makes buildOnce take the write lock.
var errNeedsExclusive = errors.New("shared objects need a change")

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
	if !exclusive && slices.ContainsFunc(p.Changes, func(c netops.Change) bool { return c.Do.Object.IsShared() }) {
		return errNeedsExclusive
	}
	return a.make(ctx, p, state)
}

// NetnsLocker is implemented by a role that chooses a free resource of the container's
// namespace, such as a routing table, or that shares an object there between attachments.
// The attachments of one container are then made one after the other. A chained role's
// parts are also removed one after the other.
type NetnsLocker interface {
	// NeedsNetnsLock does nothing. It marks the role.
	NeedsNetnsLock()
}

// namespaceLock returns the name of a namespace's lock.
func namespaceLock(dev, inode uint64) string {
	return fmt.Sprintf("netns/%d:%d", dev, inode)
}

// plan observes the kernel and computes the desired state and the changes. It changes
// nothing.
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
	if a.filtered {
		w.Spec, a.in.agentAnswers, err = enforce.Spec(ctx, a.h, a.req, a.in.state.Enforces, &netops.PodPolicy{Label: a.in.Label, Addresses: addressesOf(w.Result)}, w.Spec)
		if err != nil {
			return nil, err
		}
	}
	spec := w.Spec
	if a.made != nil {
		spec = spec.Without(a.made.desired.Spec)
	}
	plan, err := a.h.Net.Plan(ctx, spec, a.ns)
	if errors.Is(err, netops.ErrExists) {
		err = a.holderOr(ctx, w.Claims, err)
	}
	return &planned{desired: w, Plan: plan}, err
}

// make records the changes as pending, applies them and records the final state. If no
// change is needed, because all desired objects are shared and exist, it records once.
func (a *work) make(ctx context.Context, p *planned, state store.State) error {
	if a.wantsNothing(p) {
		a.made = p
		return nil
	}
	first := store.Pending
	if len(p.Changes) == 0 {
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
		for _, c := range p.desired.Claims {
			if err := tx.Claim(c, a.req.Key(), a.h.Now()); err != nil {
				return err
			}
		}
		if err := attachment.PutShared(tx, a.req.Network, a.name, p.desired.Spec, p.Changes, a.h.Now()); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
	if err != nil {
		return err
	}
	a.rec = rec
	if a.req.Recorded != nil {
		*a.req.Recorded = true
	}
	if err := a.h.Net.Apply(ctx, p.Plan, a.ns); err != nil {
		return err
	}
	a.made = p
	if state != first {
		rec.Parts[len(rec.Parts)-1].State = state
		rec.Updated = a.h.Now()
		err := a.h.Store.Update(ctx, func(tx *store.Tx) error {
			if err := recovery.SameState(tx, a.in.state); err != nil {
				return err
			}
			return tx.PutAttachment(rec)
		})
		if err != nil {
			return err
		}
	}
	if slices.ContainsFunc(p.desired.Claims, func(c store.Resource) bool { return c.Kind == store.KindAwaited }) {
		return attachment.TakeFree(ctx, a.h, a.req.ContainerID)
	}
	return nil
}

// wantsNothing reports whether a chained role's part would be empty in a record that
// exists. Omitting the part saves a transaction, and DEL would have nothing to undo.
func (a *work) wantsNothing(p *planned) bool {
	w := p.desired
	return a.on != nil && len(w.Spec.Objects) == 0 && len(p.Changes) == 0 && len(w.Claims) == 0 && w.MAC == ""
}

// record returns the attachment's record with this role's part in the given state.
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
		Key: a.req.Key(), Pod: a.req.Pod(), Netns: attachment.ThisNetns(a.req.Netns, a.ns),
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

// addressesOf returns the addresses of a result.
func addressesOf(r *roles.Result) (all []netip.Addr) {
	for _, ip := range r.IPs {
		if p, ok := Prefix(ip.Address); ok {
			all = append(all, p.Addr())
		}
	}
	return all
}

// undoable returns the changes that have an inverse.
func (p *planned) undoable() []netops.Change {
	var out []netops.Change
	for _, c := range p.Changes {
		if c.Undo != nil {
			out = append(out, c)
		}
	}
	return out
}
