package leasing

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// errSticky means that a lease has a reservation, so keep.db has to be opened first. The
// package does not return it to callers.
var errSticky = errors.New("has a reservation")

// KeepUpdate runs a transaction on keep.db. fn may begin transactions on node.db. If
// node.db does not exist, KeepUpdate creates it first, because filling it reads
// keep.db.
func KeepUpdate(ctx context.Context, h *roles.Host, fn func(*store.KeepTx) error) error {
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	return h.Store.KeepUpdate(ctx, fn)
}

// updateSticky is KeepUpdate with the reservations of a pool.
func updateSticky(ctx context.Context, h *roles.Host, id store.PoolID, fn func(*store.StickyPool) error) error {
	return KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		kept, err := keep.Sticky(id)
		if err != nil {
			return err
		}
		return fn(kept)
	})
}

// Release deletes and returns an attachment's leases, in all pools. Their reservations are
// kept from now on, and cool down. The leases are released even if keep.db cannot be read
// or written, or belongs to a newer program.
func Release(ctx context.Context, h *roles.Host, req *roles.Request) (released []store.Lease, err error) {
	err = h.Store.Update(ctx, func(tx *store.Tx) error {
		released, err = deleteLeases(tx, req)
		if err == nil && slices.ContainsFunc(released, func(l store.Lease) bool { return l.Sticky != "" }) {
			err = errSticky
		}
		return err
	})
	if !errors.Is(err, errSticky) {
		return released, err
	}
	release := func() error {
		return h.Store.Update(ctx, func(tx *store.Tx) error {
			var err error
			released, err = deleteLeases(tx, req)
			return err
		})
	}
	err = KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		if err := release(); err != nil {
			return err
		}
		return releaseReservations(keep, released, h.Now())
	})
	if errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnwritable) {
		h.Log.Warn("released addresses are not kept for their pod", "container", req.ContainerID, "error", err)
		err = release()
	}
	return released, err
}

// deleteLeases deletes and returns an attachment's leases.
func deleteLeases(tx *store.Tx, req *roles.Request) ([]store.Lease, error) {
	released, err := tx.DeleteLeases(req.Key())
	if err == nil && len(released) == 0 {
		released, err = tx.DeleteLeases(oldKey(req))
	}
	return released, err
}

// releaseReservations records that leases were released. A reservation that another
// attachment holds by now is left alone.
func releaseReservations(keep *store.KeepTx, leases []store.Lease, now time.Time) error {
	for _, l := range leases {
		err := keep.EachSticky(l.Owner.Network, func(pool *store.StickyPool) error {
			r, err := pool.ReservationAt(l.Address)
			if err != nil || r.Holder != l.Owner || r.Released.Equal(now) {
				return ignoring(err, store.ErrNotFound)
			}
			r.Released = now
			return pool.Put(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// releaseAbandoned releases the reservations of holders without a lease. They exist
// because neither the removal of a dead attachment nor the loss of node.db updates
// keep.db.
func releaseAbandoned(ctx context.Context, h *roles.Host, id store.PoolID) error {
	return updateSticky(ctx, h, id, func(kept *store.StickyPool) error {
		return h.Store.ViewPool(ctx, id, func(_ *store.Tx, pool *store.Pool) error { return releaseAbandonedIn(kept, pool, h.Now()) })
	})
}

// releaseAbandonedIn is releaseAbandoned within transactions. If the clock was set back,
// a release may be in the future; it is replaced by now, because the addresses would be
// kept for too long.
func releaseAbandonedIn(kept *store.StickyPool, pool *store.Pool, now time.Time) error {
	var gone []store.Reservation
	for r, err := range kept.All() {
		if errors.Is(err, store.ErrDamaged) {
			continue // its addresses stay reserved
		}
		if err != nil {
			return err
		}
		held := false
		if r.Held() {
			if held, err = isLeased(pool, &r); err != nil {
				return err
			}
		}
		if r.Held() && !held || r.Released.After(now) {
			r.Released = now
			gone = append(gone, r)
		}
	}
	for i := range gone {
		if err := kept.Put(&gone[i]); err != nil {
			return err
		}
	}
	return nil
}

// oldKey returns the owner of leases from files of a reference plugin of before 2018,
// which do not name the interface.
func oldKey(req *roles.Request) store.Key {
	return store.Key{Network: req.Network, ContainerID: req.ContainerID}
}
