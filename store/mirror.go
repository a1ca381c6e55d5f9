package store

import (
	"context"
	"errors"
)

// Mirror removes the files in which other programs see leases.
//
// An ADD commits the lease and then makes the file, and a release removes the file and
// then commits. So there is never a file without a lease, whenever a process is killed.
// A lease without a file is released by DEL, GC or a reaper like any other.
type Mirror interface {
	// Remove removes the files of released leases. It does not wait, because node.db is
	// locked: it returns false if another program uses the files.
	Remove(released []Released) bool
	// Lock waits for the other programs that Remove found, and excludes them until
	// Close. After a timeout Remove leaves the files.
	Lock(ctx context.Context) error
	Close()
}

// errMirrorLocked means that another program uses the files of leases. It never leaves
// this package.
var errMirrorLocked = errors.New("files of leases are locked")

// Released is a released lease of a pool.
type Released struct {
	PoolID
	Lease
}

// updateMirrored runs fn in a transaction, with a Mirror if there is one. It waits without node.db's lock, so a stopped
// program stops the calls of one network only.
func (s *Store) updateMirrored(ctx context.Context, fn func(*Tx) error) error {
	if s.o.Mirror == nil {
		return s.updateNode(ctx, fn)
	}
	var m Mirror
	within := func(tx *Tx) error {
		if err := fn(tx); err != nil || len(tx.released) == 0 {
			return err
		}
		gone, err := tx.notLeasedAgain()
		if err != nil || len(gone) == 0 {
			return err
		}
		if m == nil {
			m = s.o.Mirror()
		}
		if !m.Remove(gone) {
			return errMirrorLocked
		}
		return nil
	}
	err := s.updateNode(ctx, within)
	if m == nil {
		return err
	}
	defer m.Close()
	for errors.Is(err, errMirrorLocked) {
		if err = m.Lock(ctx); err == nil {
			err = s.updateNode(ctx, within)
		}
	}
	return err
}

// notLeasedAgain returns the released leases without those that the transaction stored
// again for the same container.
func (tx *Tx) notLeasedAgain() ([]Released, error) {
	var gone []Released
	for _, r := range tx.released {
		p, err := tx.Pool(r.PoolID)
		if err != nil {
			return nil, err
		}
		l, err := p.Lease(r.Address)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err != nil || l.Owner != r.Owner {
			gone = append(gone, r)
		}
	}
	return gone, nil
}
