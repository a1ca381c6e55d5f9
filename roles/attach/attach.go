// Package attach is what interface roles share: the one course of ADD, DEL,
// CHECK, GC and STATUS. A role brings an [Interface], which says what is wanted;
// this package makes it so, records it and takes it away again.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// Interface is one interface role with one valid configuration.
type Interface interface {
	// Role is the role's name, under which its part is recorded.
	Role() string
	// IPAM is the IPAM plugin's type; empty means layer 2 only.
	IPAM() string
	// Shared names the shared objects that the role stands on ("bridge/cni0").
	// They are locked for reading while an attachment is made, and for writing
	// while they are changed themselves.
	Shared() []string
	// Observe reads what Wire needs to know of the kernel. It changes nothing.
	Observe(ctx context.Context, h *roles.Host, in *Input) error
	// Wire computes what is wanted. It is a pure function.
	Wire(in *Input) (*Wiring, error)
}

// Input is all that Wire computes from.
type Input struct {
	Key store.Key
	// Netns is CNI_NETNS as given: the sandbox of result interfaces.
	Netns string
	Args  roles.Args
	// HostLink, Label and the MACs are the derived names of the attachment.
	HostLink, Label       string
	HostMAC, ContainerMAC string
	// IPAM is the IPAM plugin's answer; nil for layer 2. On CHECK it is made
	// from prevResult.
	IPAM *roles.Result
	// Prev is prevResult on CHECK, else nil.
	Prev *roles.Result
	// Observed is what Observe read.
	Observed any
	// state is the state file that ADD began with.
	state node.StateID
}

// Wiring is what a role wants for one attachment.
type Wiring struct {
	Spec   netops.Spec
	Result *roles.Result
	// HostLink is the host side's interface, empty where there is none.
	HostLink string
	// MAC is the container side's.
	MAC string
}

// Handler answers the CNI verbs for an Interface.
type Handler struct{ role Interface }

// New returns the Handler of an interface role.
func New(role Interface) *Handler { return &Handler{role: role} }

// Add attaches a container. On failure the kernel and the store are as before,
// but for shared objects.
func (a *Handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	lock, err := h.Store.LockAttachment(ctx, req.Key())
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := node.Ensure(ctx, h); err != nil {
		return nil, err
	}
	in := newInput(req)
	if in.state, err = a.clearDead(ctx, h, req, ns); err != nil {
		return nil, err
	}
	if a.role.IPAM() != "" {
		if in.IPAM, err = a.addresses(ctx, h, req); err != nil {
			return nil, err
		}
	}
	w, err := a.build(ctx, h, req, in, ns)
	if err != nil && a.role.IPAM() != "" {
		undo := h.Delegate.Del(context.WithoutCancel(ctx), a.role.IPAM(), req)
		return nil, errors.Join(err, undo)
	}
	if err != nil {
		return nil, err
	}
	return w.Result, nil
}

// newInput derives an attachment's names.
func newInput(req *roles.Request) *Input {
	key := req.Key()
	return &Input{
		Key: key, Netns: req.Netns, Args: req.Args,
		HostLink: node.HostLink(key), Label: node.Label(key),
		HostMAC: node.MAC(key, "host"), ContainerMAC: node.MAC(key, "container"),
	}
}

// clearDead makes way for an ADD: what an interrupted call or a former life of
// the container left is removed; a living attachment is an error. It returns
// the state file that was read.
func (a *Handler) clearDead(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) (node.StateID, error) {
	old, state, err := node.AttachmentIn(ctx, h, req.Key())
	if err != nil || old == nil {
		return state, err
	}
	p := old.Part(a.role.Role())
	if p == nil {
		p = node.RebuiltPart(old)
	}
	if p != nil && p.State == store.Done {
		dead, err := node.Replaced(ctx, h, old, ns)
		if err != nil {
			return state, err
		}
		if !dead {
			return state, fmt.Errorf("%w: interface %q of container %q on network %q, since %s: run DEL first",
				roles.ErrAttached, req.IfName, req.ContainerID, req.Network, p.Time.Format("2006-01-02 15:04:05"))
		}
	}
	return state, node.Remove(ctx, h, old, ns)
}

// addresses asks the IPAM plugin.
func (a *Handler) addresses(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	r, err := h.Delegate.Add(ctx, a.role.IPAM(), req)
	if err != nil {
		return nil, err
	}
	if len(r.IPs) == 0 {
		undo := h.Delegate.Del(context.WithoutCancel(ctx), a.role.IPAM(), req)
		return nil, errors.Join(fmt.Errorf("ipam plugin %q: returned no IP addresses", a.role.IPAM()), undo)
	}
	return r, nil
}

// build computes, records and makes. Under the read lock of the shared objects
// first; when these need changing themselves, again under the write lock.
func (a *Handler) build(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace) (*Wiring, error) {
	for _, exclusive := range []bool{false, true} {
		w, err := a.buildLocked(ctx, h, req, in, ns, exclusive)
		if !errors.Is(err, errNeedsExclusive) {
			return w, err
		}
	}
	return nil, fmt.Errorf("%w: shared objects changed while they were locked", roles.ErrTryAgain)
}

// errNeedsExclusive never leaves this package.
var errNeedsExclusive = errors.New("shared objects need changing")

func (a *Handler) buildLocked(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, ns *netops.Namespace, exclusive bool) (*Wiring, error) {
	unlock, err := lockShared(ctx, h, a.role.Shared(), exclusive)
	if err != nil {
		return nil, err
	}
	defer unlock()
	w, changes, err := a.plan(ctx, h, in, ns)
	if err != nil {
		return nil, err
	}
	if !exclusive && touchesShared(changes) {
		return nil, errNeedsExclusive
	}
	return w, a.make(ctx, h, req, in, w, changes, ns)
}

// plan observes, computes the wiring and what leads to it. It changes nothing.
func (a *Handler) plan(ctx context.Context, h *roles.Host, in *Input, ns *netops.Namespace) (*Wiring, []netops.Change, error) {
	if err := a.role.Observe(ctx, h, in); err != nil {
		return nil, nil, err
	}
	w, err := a.role.Wire(in)
	if err != nil {
		return nil, nil, err
	}
	changes, err := h.Net.Plan(ctx, w.Spec, ns)
	return w, changes, err
}

// make records the changes as pending, applies them and records them as done.
func (a *Handler) make(ctx context.Context, h *roles.Host, req *roles.Request, in *Input, w *Wiring, changes []netops.Change, ns *netops.Namespace) error {
	rec, err := a.record(h, req, w, changes, ns)
	if err != nil {
		return err
	}
	err = h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := node.SameState(tx, in.state); err != nil {
			return err
		}
		if err := node.RecordShared(tx, req.Network, a.role.Role(), w.Spec, changes, h.Now()); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
	if err != nil {
		return err
	}
	if err := h.Net.Apply(ctx, changes, ns); err != nil {
		// Apply undid what it did; run once more over the stored inverses in
		// case its undo failed, and keep the record if this fails too.
		return errors.Join(err, node.Remove(context.WithoutCancel(ctx), h, rec, ns))
	}
	rec.Parts[len(rec.Parts)-1].State = store.Done
	rec.Updated = h.Now()
	err = h.Store.Update(ctx, func(tx *store.Tx) error {
		if err := node.SameState(tx, in.state); err != nil {
			return err
		}
		return tx.PutAttachment(rec)
	})
	if err != nil {
		return errors.Join(err, node.Remove(context.WithoutCancel(ctx), h, rec, ns))
	}
	return nil
}

// record describes the attachment with its part pending.
func (a *Handler) record(h *roles.Host, req *roles.Request, w *Wiring, changes []netops.Change, ns *netops.Namespace) (*store.Attachment, error) {
	raw, err := json.Marshal(undoable(changes))
	if err != nil {
		return nil, err
	}
	now := h.Now()
	rec := &store.Attachment{
		Key: req.Key(), Pod: req.Pod(), Netns: node.ThisNetns(req.Netns, ns),
		HostLink: w.HostLink, MAC: w.MAC,
		Parts:   []store.Part{{Role: a.role.Role(), State: store.Pending, Changes: raw, Time: now}},
		Created: now, Updated: now, Program: h.Program,
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
func undoable(changes []netops.Change) []netops.Change {
	var out []netops.Change
	for _, c := range changes {
		if c.Undo != nil {
			out = append(out, c)
		}
	}
	return out
}

// lockShared locks every name, in order, and returns what unlocks them all.
func lockShared(ctx context.Context, h *roles.Host, names []string, exclusive bool) (func(), error) {
	var locks []*store.Lock
	unlock := func() {
		for _, l := range locks {
			l.Unlock()
		}
	}
	for _, n := range names {
		l, err := h.Store.LockShared(ctx, n, exclusive)
		if err != nil {
			unlock()
			return nil, err
		}
		locks = append(locks, l)
	}
	return unlock, nil
}

// touchesShared tells whether a plan changes a shared object.
func touchesShared(changes []netops.Change) bool {
	for _, c := range changes {
		if c.Do.Object.IsShared() {
			return true
		}
	}
	return false
}
