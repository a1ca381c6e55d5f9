package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// errSticky never leaves this package: a lease has a reservation, so keep.db is
// to be written, and comes first.
var errSticky = errors.New("has a reservation")

// KeepUpdate is a transaction on keep.db within which there may be others on
// node.db. That is made before, if there is none: what it is filled from is in
// keep.db too.
func KeepUpdate(ctx context.Context, h *roles.Host, fn func(*store.KeepTx) error) error {
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	return h.Store.KeepUpdate(ctx, fn)
}

// Release deletes an attachment's leases, of whichever pool. What it has
// reservations of is kept from now on, and cools down. A keep.db that cannot be
// read or written, or is of a newer program, does not keep the leases.
func Release(ctx context.Context, h *roles.Host, req *roles.Request) error {
	plainly := func() error {
		return h.Store.Update(ctx, func(tx *store.Tx) error {
			released, err := deleteLeases(tx, req)
			if err == nil && anySticky(released) {
				err = errSticky
			}
			return err
		})
	}
	if err := plainly(); !errors.Is(err, errSticky) {
		return err
	}
	var released []store.Lease
	stuck := func() error {
		return h.Store.Update(ctx, func(tx *store.Tx) error {
			var err error
			released, err = deleteLeases(tx, req)
			return err
		})
	}
	err := KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		if err := stuck(); err != nil {
			return err
		}
		return releaseReservations(keep, released, h.Now())
	})
	if errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnwritable) {
		h.Log.Warn("released addresses are not kept for their pod", "container", req.ContainerID, "error", err)
		return stuck()
	}
	return err
}

// deleteLeases deletes and returns an attachment's leases.
func deleteLeases(tx *store.Tx, req *roles.Request) ([]store.Lease, error) {
	released, err := tx.DeleteLeases(req.Key())
	if err == nil && len(released) == 0 {
		released, err = tx.DeleteLeases(oldKey(req))
	}
	return released, err
}

func anySticky(leases []store.Lease) bool {
	for _, l := range leases {
		if l.Sticky != "" {
			return true
		}
	}
	return false
}

// releaseReservations notes that leases are gone. A reservation that has passed
// on to another attachment is not theirs any more.
func releaseReservations(keep *store.KeepTx, leases []store.Lease, now time.Time) error {
	for _, l := range leases {
		pools, err := keep.StickyPools(l.Owner.Network)
		if err != nil {
			return err
		}
		for _, id := range pools {
			pool, err := keep.Sticky(id)
			if err != nil {
				return err
			}
			r, err := pool.ReservationAt(l.Address)
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if r.Holder != l.Owner || r.Released.Equal(now) {
				continue
			}
			r.Released = now
			if err := pool.Put(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle releases what is held by attachments that have no lease any more: who
// removes the dead, or loses node.db, writes no keep.db.
func settle(ctx context.Context, h *roles.Host, id store.PoolID) error {
	return KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		kept, err := keep.Sticky(id)
		if err != nil {
			return err
		}
		return h.Store.View(ctx, func(tx *store.Tx) error {
			pool, err := tx.Pool(id)
			if err != nil {
				return err
			}
			return settleIn(kept, pool, h.Now())
		})
	})
}

// settleIn is settle in transactions. What was released later than now, by a
// clock that has been put back, was released now: it would be kept for too long.
func settleIn(kept *store.StickyPool, pool *store.Pool, now time.Time) error {
	var gone []store.Reservation
	for r, err := range kept.All() {
		if errors.Is(err, store.ErrDamaged) {
			continue // it keeps its addresses
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

// oldKey is the owner of leases taken over from files of before 2018, which
// name no interface.
func oldKey(req *roles.Request) store.Key {
	return store.Key{Network: req.Network, ContainerID: req.ContainerID}
}
