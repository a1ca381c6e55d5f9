package store

import (
	"context"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
	"github.com/cnibox/cnibox/store/internal/pool"
)

// Sound returns an error that is ErrDamaged and names every record that cannot be
// decoded.
func (tx *KeepTx) Sound() error {
	_, marks := kv.List[mark](tx.b, bucketMarks, nil)
	_, delegations := tx.Delegations("")
	_, leases := tx.DHCPLeases("")
	_, sources := kv.List[CloudSource](tx.b, bucketCloud, nil)
	pools := tx.EachSticky("", func(p *StickyPool) error {
		_, reservations := Collect(p.All())
		_, waiting := Collect(p.Waiting())
		return errors.Join(reservations, waiting)
	})
	return errors.Join(marks, delegations, leases, sources, pools)
}

// Mended is the outcome of MendKeep.
type Mended struct {
	// Aside is the path of the damaged file.
	Aside string
	// Kept and Lost count the records that are in the new file, and those that could be
	// seen and not decoded. What was in pages that could not be read is not counted.
	Kept, Lost int
}

// MendKeep sets keep.db aside and makes a new one with those of its records that can be
// read: nothing else has them.
func (s *Store) MendKeep(ctx context.Context) (Mended, error) {
	var m Mended
	aside, err := s.keep().Mend(ctx, func(b *bolt.Tx, entries []boltfile.Entry) error {
		for _, e := range entries {
			restored, err := (&KeepTx{b: b}).restore(e)
			if err != nil {
				m.Lost++
			}
			if restored {
				m.Kept++
			}
		}
		return nil
	})
	m.Aside = aside
	return m, err
}

// restore stores one entry of a damaged file. It is false for an entry that belongs to
// an index, which is made anew.
func (tx *KeepTx) restore(e boltfile.Entry) (bool, error) {
	switch {
	case len(e.Buckets) == 2 && e.Buckets[0] == pool.StickyBucket:
		return pool.RestoreSticky(tx.b, []byte(e.Buckets[1]), e.Key, e.Value)
	case len(e.Buckets) != 1:
		return false, nil
	}
	into, parts := any(nil), 1
	switch e.Buckets[0] {
	case bucketMarks:
		into, parts = &mark{}, 2
	case bucketDelegations:
		into, parts = &Delegation{}, 3
	case bucketDHCPLeases:
		into, parts = &DHCPLease{}, 3
	case bucketCloud:
		into = &CloudSource{}
	default:
		return false, nil
	}
	names, rest, err := kv.DecodeKey(e.Key, parts)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("decode key %q: %w", e.Key, ErrDamaged)
	}
	if err == nil {
		_, err = kv.StorableKey("record", names...)
	}
	if err == nil {
		err = coldjson.Unmarshal(e.Value, into)
	}
	if err != nil {
		return false, err
	}
	to, err := kv.Writable(tx.b, e.Buckets[0])
	if err != nil {
		return false, err
	}
	if err := to.Put(e.Key, e.Value); err != nil {
		return false, fmt.Errorf("restore record %.200q: %w", e.Key, err)
	}
	return true, nil
}
