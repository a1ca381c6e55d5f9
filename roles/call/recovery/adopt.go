package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// unknownDir is the data directory of rebuilt leases whose pool is not in a runtime's
// cache. No configuration can have it.
const unknownDir = ""

// Ensure rebuilds the state file if it does not exist. Without Ensure a call that only
// reads would see an empty node.
func Ensure(ctx context.Context, h *roles.Host) error {
	st, err := os.Lstat(h.Store.Path())
	switch {
	case err == nil && st.Size() > 0:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return h.Store.Update(ctx, func(*store.Tx) error { return nil })
}

// Attachment reads a record. It returns nil and no error if there is none. A record with
// an unknown owner was rebuilt under its label; Attachment stores it under the owner's
// key.
func Attachment(ctx context.Context, h *roles.Host, key store.Key) (*store.Attachment, error) {
	f, _, err := Find(ctx, h, key)
	return f.Attachment, err
}

// Find reads a record as Attachment does, or, if there is none, the leases of the key. It
// returns the ID of the state file, for [SameState].
func Find(ctx context.Context, h *roles.Host, key store.Key) (f attachment.Found, file StateID, err error) {
	orphaned := false
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		id, err := tx.FileID()
		if err != nil {
			return err
		}
		file = StateID{id, tx.Enforces()}
		f.Attachment, err = tx.Attachment(key)
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if _, orphaned, err = orphan(tx, key); err != nil || orphaned {
			return err
		}
		f.Leases, err = tx.LeasesOf(key)
		return err
	})
	if err != nil || !orphaned {
		return f, file, err
	}
	err = h.Store.Update(ctx, func(tx *store.Tx) error {
		var err error
		f.Attachment, err = adopt(tx, key)
		return err
	})
	return f, file, err
}

// StateID identifies a state file. A rebuilt file has another ID.
type StateID struct {
	id string
	// Enforces is true on a node that enforces network policies.
	Enforces bool
}

// SameState fails with ErrTryAgain if the state file was replaced since the ADD began.
// The rebuild found no interface with the address that the ADD reserved, so another
// attachment may have it now.
func SameState(tx *store.Tx, file StateID) error {
	id, err := tx.FileID()
	if err == nil && id != file.id {
		err = fmt.Errorf("%w: the state file was replaced during the call", roles.ErrTryAgain)
	}
	return err
}

// Invalid returns the attachments of a GC's network that are not in the runtime's list.
// It first stores the orphans of valid attachments under their owners' keys, because
// under their labels they would be invalid.
func Invalid(ctx context.Context, h *roles.Host, req *roles.Request) ([]store.Attachment, error) {
	if err := adoptValid(ctx, h, req.Network, req.Valid); err != nil {
		return nil, err
	}
	atts, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments(req.Network) })
	return slices.DeleteFunc(atts, func(a store.Attachment) bool { return req.IsValid(a.ContainerID, a.IfName) }), err
}

// adoptValid stores the orphans of valid attachments under their owners' keys.
func adoptValid(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) error {
	var orphans []store.Key
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		for _, v := range valid {
			key := store.Key{Network: network, ContainerID: v.ContainerID, IfName: v.IfName}
			_, is, err := orphan(tx, key)
			if err != nil {
				return err
			}
			if is {
				orphans = append(orphans, key)
			}
		}
		return nil
	})
	if err != nil || len(orphans) == 0 {
		return err
	}
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		for _, key := range orphans {
			if _, err := adopt(tx, key); err != nil {
				return err
			}
		}
		return nil
	})
}

// orphan reads the record that was rebuilt under an attachment's label. If the alias was
// truncated, the record's network may be empty too.
func orphan(tx *store.Tx, key store.Key) (*store.Attachment, bool, error) {
	label := attachment.Label(key)
	for _, k := range []store.Key{
		{Network: key.Network, ContainerID: label, IfName: key.IfName},
		{ContainerID: label},
	} {
		a, err := tx.Attachment(k)
		if !errors.Is(err, store.ErrNotFound) {
			return a, err == nil, err
		}
	}
	return nil, false, nil
}

// adopt stores an orphan and its leases under the owner's key. It returns nil if another
// process has already stored them.
func adopt(tx *store.Tx, key store.Key) (*store.Attachment, error) {
	a, is, err := orphan(tx, key)
	if err != nil || !is {
		return nil, err
	}
	from := a.Key
	if err := tx.DeleteAttachment(from); err != nil {
		return nil, err
	}
	a.Key = key
	if err := tx.PutAttachment(a); err != nil {
		return nil, err
	}
	err = tx.EachPool(from.Network, func(p *store.Pool) error {
		to := store.PoolID{DataDir: p.ID().DataDir, Network: key.Network}
		return moveLeases(tx, p, to, key, func(l *store.Lease) bool { return l.Owner == from })
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// MoveLeases moves the rebuilt leases of a network to a pool if they are in the pool's
// ranges; only the ranges show the pool of such a lease. belongs reports whether a lease
// is in the ranges, and completes the lease.
func MoveLeases(tx *store.Tx, id store.PoolID, belongs func(*store.Lease) bool) error {
	from := store.PoolID{DataDir: unknownDir, Network: id.Network}
	pools, err := tx.Pools()
	if err != nil || !slices.Contains(pools, from) {
		return err
	}
	source, err := tx.Pool(from)
	if err != nil {
		return err
	}
	return moveLeases(tx, source, id, store.Key{}, belongs)
}

// IsPoolUnknown reports whether a pool holds the rebuilt leases of unknown pools.
func IsPoolUnknown(id store.PoolID) bool { return id.DataDir == unknownDir }

// LeasesOfUnknownPool returns an owner's rebuilt leases of an unknown pool.
func LeasesOfUnknownPool(tx *store.Tx, owner store.Key) ([]store.Lease, error) {
	pool, err := tx.Pool(store.PoolID{DataDir: unknownDir, Network: owner.Network})
	if err != nil {
		return nil, err
	}
	return pool.Owned(owner)
}

// moveLeases moves the chosen leases to another pool and, unless it is the zero Key, to
// another owner. If an address is taken in the other pool, its holder keeps it.
func moveLeases(tx *store.Tx, source *store.Pool, to store.PoolID, owner store.Key, chosen func(*store.Lease) bool) error {
	target, err := tx.Pool(to)
	if err != nil {
		return err
	}
	all, err := store.Collect(source.Leases())
	if err != nil {
		return err
	}
	for _, l := range all {
		if !chosen(&l) {
			continue
		}
		if err := source.Release(l.Address); err != nil {
			return err
		}
		if owner != (store.Key{}) {
			l.Owner = owner
		}
		if err := target.Reserve(l); err != nil && !errors.Is(err, store.ErrTaken) {
			return err
		}
	}
	return nil
}
