package multi

import (
	"context"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// lock locks one attachment of multi. It differs from the attachment's own lock, which the plugins
// of a network with the same name take.
func lock(ctx context.Context, h *roles.Host, key store.Key) (*store.Lock, error) {
	return h.Store.LockShared(ctx, lockName(key), true)
}

func lockName(key store.Key) string {
	return "multi/" + key.Network + "/" + key.ContainerID + "/" + key.IfName
}

// loadRecords reads the requested networks and the result of ADD. It returns nil for a missing
// record. A damaged record counts as missing: it does not contain what to undo, and an error would
// make the runtime repeat DEL forever.
func loadRecords(ctx context.Context, h *roles.Host, key store.Key) (*store.Delegation, *store.Delegated, error) {
	request, err := store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) (*store.Delegation, error) { return tx.Delegation(key) })
	if err = ignoreMissing(h, err); err != nil {
		return nil, nil, err
	}
	out, err := store.Read(ctx, h.Store, func(tx *store.Tx) (*store.Delegated, error) { return tx.Delegated(key) })
	return request, out, ignoreMissing(h, err)
}

// ignoreMissing returns nil for a record that does not exist or is damaged.
func ignoreMissing(h *roles.Host, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if errors.Is(err, store.ErrDamaged) {
		h.Log.Error("ignoring a damaged record", "error", err)
		return nil
	}
	return err
}

// recordRequest writes the requested networks to the disk before a plugin runs. GC of the networks in
// added, which the record has not had before, either sees the record or has ended.
func recordRequest(ctx context.Context, h *roles.Host, request *store.Delegation, added []store.Delegate, out *store.Delegated) error {
	var networks []store.DelegatedNetwork
	for i := range added {
		n := &added[i]
		name := networkName(n)
		if slices.ContainsFunc(networks, func(n store.DelegatedNetwork) bool { return n.Network == name }) {
			continue
		}
		networks = append(networks, store.DelegatedNetwork{Owner: request.Owner.Network, Network: name, List: n.List, Version: n.Version, HostLink: n.HostLink})
		held, err := h.Store.LockShared(ctx, gcLock(name), false)
		if err != nil {
			return err
		}
		defer held.Unlock()
	}
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.PutDelegation(request) })
	if err != nil {
		return err
	}
	out.Updated = h.Now()
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range networks {
			if err := tx.PutDelegatedNetwork(&networks[i]); err != nil {
				return err
			}
		}
		return tx.PutDelegated(out)
	})
}

// gcLock returns the name of the lock that GC of a network holds exclusively, from before it reads
// the records until the network's plugins have returned. The record of an attachment to the network
// is written under the shared lock.
func gcLock(network string) string { return "multi-gc/" + network }

// recordOutcome writes the result.
func recordOutcome(ctx context.Context, h *roles.Host, out *store.Delegated) error {
	out.Updated = h.Now()
	return h.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutDelegated(out) })
}

// deleteRecords deletes both records of a detached container, the one with the requested networks
// last. If that record cannot be deleted because the disk is not writable, the result records that
// all networks are gone, so that DEL succeeds. The next ADD, DEL or GC deletes the record.
func deleteRecords(ctx context.Context, h *roles.Host, key store.Key) error {
	ctx = context.WithoutCancel(ctx)
	if err := h.Store.Update(ctx, func(tx *store.Tx) error { return tx.DeleteDelegated(key) }); err != nil {
		return err
	}
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDelegation(key) })
	if !errors.Is(err, store.ErrUnwritable) {
		return err
	}
	request, _, known := loadRecords(ctx, h, key)
	if known != nil || request == nil {
		return known
	}
	h.Log.Warn("cannot delete the record of the networks", "container", key.ContainerID, "ifname", key.IfName, "error", err)
	out := &store.Delegated{Owner: key, State: store.Removing}
	for _, n := range request.Delegates {
		out.Done = append(out.Done, store.Answer{IfName: n.IfName, Gone: true})
	}
	return recordOutcome(ctx, h, out)
}

// allRecords returns all records of this node. It leaves out damaged records, because these must
// not affect other containers, and returns whole false.
func allRecords(ctx context.Context, h *roles.Host) (all []store.Delegation, whole bool, err error) {
	var damaged error
	err = h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		if all, err = tx.Delegations(""); errors.Is(err, store.ErrDamaged) {
			damaged, err = err, nil
		}
		return err
	})
	if damaged != nil {
		h.Log.Error("damaged records: DEL of their containers or 'cnibox state reap' removes the attachments", "error", damaged)
	}
	return all, damaged == nil, err
}
