package store

import (
	"context"
	"errors"
	"iter"

	"github.com/cnibox/cnibox/store/internal/pool"
)

type (
	// PoolID identifies an address pool.
	PoolID = pool.ID
	// Pool has the leases of one address pool.
	Pool = pool.Pool
	// Lease is one address in use.
	Lease = pool.Lease
	// Netns identifies a namespace by its path and by the identity that it had when the record was
	// written.
	Netns = pool.Netns
	// Freed has the released addresses of a pool.
	Freed = pool.Freed
	// FreedAddress is a released address.
	FreedAddress = pool.FreedAddress
	// StickyPool has the reservations of one address pool.
	StickyPool = pool.Sticky
	// Reservation keeps addresses of a pool for an identity.
	Reservation = pool.Reservation
	// Stage is a state of a Reservation.
	Stage = pool.Stage
)

// Constants of package pool.
const (
	CloudDataDir = pool.CloudDataDir
	RangeDataDir = pool.RangeDataDir
	KeepForever  = pool.KeepForever

	Held    = pool.Held
	Kept    = pool.Kept
	Cooling = pool.Cooling
	Expired = pool.Expired
)

// Pool returns a pool. In an Update a pool that does not exist is created, in a
// View it is empty.
func (tx *Tx) Pool(id PoolID) (*Pool, error) {
	p, err := pool.Open(tx.b, id, tx.clock)
	if err == nil {
		p.Released = func(l Lease) { tx.released = append(tx.released, Released{id, l}) }
	}
	return p, err
}

// ViewPool is View with a pool.
func (s *Store) ViewPool(ctx context.Context, id PoolID, fn func(*Tx, *Pool) error) error {
	return s.View(ctx, withPool(id, fn))
}

// UpdatePool is Update with a pool.
func (s *Store) UpdatePool(ctx context.Context, id PoolID, fn func(*Tx, *Pool) error) error {
	return s.Update(ctx, withPool(id, fn))
}

func withPool(id PoolID, fn func(*Tx, *Pool) error) func(*Tx) error {
	return func(tx *Tx) error {
		p, err := tx.Pool(id)
		if err != nil {
			return err
		}
		return fn(tx, p)
	}
}

// Pools returns all pools, by network and data directory.
func (tx *Tx) Pools() ([]PoolID, error) { return pool.List(tx.b, "") }

// EachPool calls each with the pools of a network, or all with "", in the order of Pools. It joins the
// errors.
func (tx *Tx) EachPool(network string, each func(*Pool) error) error {
	ids, err := pool.List(tx.b, network)
	faults := []error{err}
	for _, id := range ids {
		p, err := tx.Pool(id)
		if err == nil {
			err = each(p)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// Collect returns what an iterator of this package gives, and its joined errors.
func Collect[T any](of iter.Seq2[T, error]) (all []T, err error) {
	var faults []error
	for one, err := range of {
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(faults...)
}

// Freed returns the released addresses of a pool. A pool whose data directory is
// neither CloudDataDir nor of RangeDataDir has none.
func (tx *Tx) Freed(id PoolID) (*Freed, error) { return pool.OpenFreed(tx.b, id) }

// LeasesOf returns the leases of an owner in every pool of its network.
func (tx *Tx) LeasesOf(owner Key) ([]Lease, error) {
	var all []Lease
	err := tx.EachPool(owner.Network, func(p *Pool) error {
		own, err := p.Owned(owner)
		all = append(all, own...)
		return err
	})
	return all, err
}

// DeleteLeases releases the leases of an owner in every pool of its network and
// returns them.
func (tx *Tx) DeleteLeases(owner Key) ([]Lease, error) {
	var all []Lease
	err := tx.EachPool(owner.Network, func(p *Pool) error {
		own, err := p.Owned(owner)
		for _, l := range own {
			if err := p.Release(l.Address); err != nil {
				return err
			}
			all = append(all, l)
		}
		return err
	})
	return all, err
}

// Sticky returns the reservations of a pool. In a KeepUpdate a pool that does not
// exist is created, in a KeepView it is empty.
func (tx *KeepTx) Sticky(id PoolID) (*StickyPool, error) { return pool.OpenSticky(tx.b, id) }

// StickyPools returns the pools with reservations of a network, or of all with "",
// by network and data directory.
func (tx *KeepTx) StickyPools(network string) ([]PoolID, error) {
	return pool.ListSticky(tx.b, network)
}

// EachSticky calls each with these pools. It joins the errors.
func (tx *KeepTx) EachSticky(network string, each func(*StickyPool) error) error {
	ids, err := tx.StickyPools(network)
	faults := []error{err}
	for _, id := range ids {
		p, err := tx.Sticky(id)
		if err == nil {
			err = each(p)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
