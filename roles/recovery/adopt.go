package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// unknownDir is the data directory of rebuilt leases whose pool no cache names. No
// configuration can name it.
const unknownDir = ""

// Ensure makes the state file if there is none, which rebuilds it. A call that only
// reads would otherwise find an empty node.
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

// Attachment reads a record; it returns nil without an error if there is none. A record
// that was rebuilt under its label, with an unknown owner, gets the owner's key.
func Attachment(ctx context.Context, h *roles.Host, key store.Key) (*store.Attachment, error) {
	f, _, err := Find(ctx, h, key)
	return f.Attachment, err
}

// Find reads what is stored under a key, as Attachment does; it reads leases only if
// there is no record. It returns the ID of the state file, for [SameState].
func Find(ctx context.Context, h *roles.Host, key store.Key) (f record.Found, file StateID, err error) {
	orphaned := false
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		id, err := tx.FileID()
		if err != nil {
			return err
		}
		file = StateID{id}
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

// StateID identifies a state file among those that replaced each other.
type StateID struct{ id string }

// SameState fails with ErrTryAgain if the state file is not the one that an ADD began
// with. The address that the ADD reserved may have been given to another attachment: the
// rebuild found no interface that used it.
func SameState(tx *store.Tx, file StateID) error {
	id, err := tx.FileID()
	if err == nil && id != file.id {
		err = fmt.Errorf("%w: the state file was replaced meanwhile", roles.ErrTryAgain)
	}
	return err
}

// Invalid lists the attachments of a GC's network that the runtime does not list. It
// first gives the orphans among the listed ones to their owners: under their labels they
// would count as invalid.
func Invalid(ctx context.Context, h *roles.Host, req *roles.Request) ([]store.Attachment, error) {
	if err := adoptValid(ctx, h, req.Network, req.Valid); err != nil {
		return nil, err
	}
	var atts []store.Attachment
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		atts, err = tx.Attachments(req.Network)
		return err
	})
	return slices.DeleteFunc(atts, func(a store.Attachment) bool { return req.IsValid(a.ContainerID, a.IfName) }), err
}

// adoptValid gives the orphans among the valid attachments to their owners.
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

// orphan reads what was rebuilt under the label of an attachment. If the alias was
// truncated, the network may be unknown too.
func orphan(tx *store.Tx, key store.Key) (*store.Attachment, bool, error) {
	label := record.Label(key)
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

// adopt stores an orphan and its leases under the owner's key. It returns nil if
// another process did so meanwhile.
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
	pools, err := tx.Pools()
	if err != nil {
		return nil, err
	}
	for _, id := range pools {
		if id.Network != from.Network {
			continue
		}
		to := store.PoolID{DataDir: id.DataDir, Network: key.Network}
		mine := func(l *store.Lease) bool { return l.Owner == from }
		if err := moveLeases(tx, id, to, key, mine); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// ClaimLeases moves the rebuilt leases of a network that are in a pool's ranges to that
// pool: only the ranges show where a lease belongs. of reports whether a lease does, and
// completes it.
func ClaimLeases(tx *store.Tx, id store.PoolID, of func(*store.Lease) bool) error {
	from := store.PoolID{DataDir: unknownDir, Network: id.Network}
	pools, err := tx.Pools()
	if err != nil || !slices.Contains(pools, from) {
		return err
	}
	return moveLeases(tx, from, id, store.Key{}, of)
}

// IsPoolUnknown reports whether a pool holds rebuilt leases whose own pool is not known yet.
func IsPoolUnknown(id store.PoolID) bool { return id.DataDir == unknownDir }

// LeasesOfUnknownPool are an owner's leases whose pool is not known yet.
func LeasesOfUnknownPool(tx *store.Tx, owner store.Key) ([]store.Lease, error) {
	pool, err := tx.Pool(store.PoolID{DataDir: unknownDir, Network: owner.Network})
	if err != nil {
		return nil, err
	}
	return pool.Owned(owner)
}

// moveLeases moves the chosen leases to another pool and, unless it is the
// zero Key, to another owner. If an address is taken there, its holder keeps it.
func moveLeases(tx *store.Tx, from, to store.PoolID, owner store.Key, chosen func(*store.Lease) bool) error {
	source, err := tx.Pool(from)
	if err != nil {
		return err
	}
	target, err := tx.Pool(to)
	if err != nil {
		return err
	}
	var moved []store.Lease
	for l, err := range source.Leases() {
		if err != nil {
			return err
		}
		if chosen(&l) {
			moved = append(moved, l)
		}
	}
	for _, l := range moved {
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
