package multi

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// lock keeps two calls from working on one attachment. It is not the attachment's
// own lock, which the plugins of a network of our name take.
func lock(ctx context.Context, h *roles.Host, key store.Key) (*store.Lock, error) {
	return h.Store.LockShared(ctx, lockName(key), true)
}

func lockName(key store.Key) string {
	return "multi/" + key.Network + "/" + key.ContainerID + "/" + key.IfName
}

// load reads what was asked for and what came of it; nil for what is not recorded.
// A damaged record is none: it tells nobody what to undo, and whoever waits for it
// waits for ever.
func load(ctx context.Context, h *roles.Host, key store.Key) (*store.Delegation, *store.Delegated, error) {
	var asked *store.Delegation
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		asked, err = tx.Delegation(key)
		return err
	})
	if err = missing(h, err); err != nil {
		return nil, nil, err
	}
	var out *store.Delegated
	err = h.Store.View(ctx, func(tx *store.Tx) (err error) {
		out, err = tx.Delegated(key)
		return err
	})
	return asked, out, missing(h, err)
}

// missing takes a record that is not there, or cannot be read, for none.
func missing(h *roles.Host, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if errors.Is(err, store.ErrDamaged) {
		h.Log.Error("a record cannot be read and is ignored", "error", err)
		return nil
	}
	return err
}

// begin records what is asked for, and reaches the disk, before any plugin runs.
func begin(ctx context.Context, h *roles.Host, asked *store.Delegation, out *store.Delegated) error {
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.PutDelegation(asked) })
	if err != nil {
		return err
	}
	return put(ctx, h, out)
}

// put records what came of it.
func put(ctx context.Context, h *roles.Host, out *store.Delegated) error {
	out.Updated = h.Now()
	return h.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutDelegated(out) })
}

// forget deletes both records of what is detached; of the two, what was asked for goes
// last. Where that cannot be written it stays, and beside it that nothing is left to be
// done: who waits for the container to go must not wait for the disk. The next ADD, DEL
// or GC that finds it forgets it.
func forget(ctx context.Context, h *roles.Host, key store.Key) error {
	ctx = context.WithoutCancel(ctx)
	if err := h.Store.Update(ctx, func(tx *store.Tx) error { return tx.DeleteDelegated(key) }); err != nil {
		return err
	}
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDelegation(key) })
	if !errors.Is(err, store.ErrUnwritable) {
		return err
	}
	asked, _, known := load(ctx, h, key)
	if known != nil || asked == nil {
		return known
	}
	h.Log.Warn("what was asked for stays on record", "container", key.ContainerID, "ifname", key.IfName, "error", err)
	out := &store.Delegated{Owner: key, State: store.Removing}
	for _, n := range asked.Delegates {
		out.Done = append(out.Done, store.Answer{IfName: n.IfName, Gone: true})
	}
	return put(ctx, h, out)
}

// delegations are all that are recorded on this node. Records that cannot be read are
// left out, and whole is false then: one container's must not stop what concerns others.
func delegations(ctx context.Context, h *roles.Host) (all []store.Delegation, whole bool, err error) {
	var damaged error
	err = h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		if all, err = tx.Delegations(""); errors.Is(err, store.ErrDamaged) {
			damaged, err = err, nil
		}
		return err
	})
	if damaged != nil {
		h.Log.Error("records cannot be read: DEL of their containers, or cnibox state reap, removes what is known of them", "error", damaged)
	}
	return all, damaged == nil, err
}
