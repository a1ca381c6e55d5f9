package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// An import that changes both files writes three times:
//
//  1. keep.db gets the delegations as pendingImport.
//  2. node.db gets the records, and the pendingImport's ID. This commit decides.
//  3. keep.db gets the delegations as records, and loses the pendingImport.
//
// If the process is killed in between, the next transaction on keep.db compares the IDs: it
// does step 3 if step 2 was done, and else deletes the pendingImport. A power cut loses
// node.db, and with it the import.

// The buckets of an import have one record, with an empty name.
const (
	bucketImporting = "importing" // in keep.db
	bucketImported  = "imported"  // in node.db
)

// importLock is the name of the lock that a process holds during an import.
const importLock = "import"

// errImporting means that an import was not completed, or that it runs.
var errImporting = errors.New("import is not complete")

// pendingImport is the part of an import that waits for the decision.
type pendingImport struct {
	ID          string       `json:"id"`
	Replace     bool         `json:"replace,omitempty"`
	Delegations []Delegation `json:"delegations"`
}

// imported is the ID of the last import, which changed node.db.
type imported struct {
	ID string `json:"id"`
}

// Import adds a dump to both files, or with replace replaces their records; see [Tx.Import].
// It changes both files or none, even if the process is killed.
func (s *Store) Import(ctx context.Context, d *Dump, replace bool) error {
	if len(d.Delegations) == 0 && !replace {
		return s.Update(ctx, func(tx *Tx) error { return tx.Import(d, replace) })
	}
	p := pendingImport{rand.Text(), replace, d.Delegations}
	for i := range p.Delegations {
		if _, err := p.Delegations[i].Owner.Storable("delegation"); err != nil {
			return fmt.Errorf("import delegations[%d]: %w", i, err)
		}
	}
	lock, err := s.LockShared(ctx, importLock, true)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if err := s.settleImport(ctx); err != nil {
		return err
	}
	err = s.keep().Run(ctx, true, func(b *bolt.Tx, _ *boltfile.Cache) error {
		return kv.Store(b, bucketImporting, "import", &p, "")
	})
	if err != nil {
		return err
	}
	err = s.Update(ctx, func(tx *Tx) error {
		if err := tx.Import(d, replace); err != nil {
			return err
		}
		return kv.Store(tx.b, bucketImported, "import", &imported{p.ID}, "")
	})
	return errors.Join(err, s.settleImport(context.WithoutCancel(ctx)))
}

// settleImport completes or undoes an import. The caller holds the import's lock.
func (s *Store) settleImport(ctx context.Context) error {
	return s.keep().Run(ctx, true, func(b *bolt.Tx, _ *boltfile.Cache) error {
		if b.Bucket([]byte(bucketImporting)) == nil {
			return nil
		}
		var p pendingImport
		if err := kv.Get(b, bucketImporting, kv.EncodeKey(""), &p); err != nil {
			return err
		}
		var last imported
		err := s.View(ctx, func(tx *Tx) error { return kv.Get(tx.b, bucketImported, kv.EncodeKey(""), &last) })
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDamaged) { // a damaged node.db is made again, without the import
			return err
		}
		if err == nil && last.ID == p.ID {
			if err := (&KeepTx{b: b}).ImportDelegations(p.Delegations, p.Replace); err != nil {
				return err
			}
		}
		return b.DeleteBucket([]byte(bucketImporting))
	})
}

// runKeep runs a transaction on keep.db, after it has completed or undone an import that was
// killed. It waits for an import that runs.
func (s *Store) runKeep(ctx context.Context, write bool, fn func(*KeepTx) error) error {
	for {
		err := s.keep().Run(ctx, write, func(b *bolt.Tx, _ *boltfile.Cache) error {
			if b != nil && b.Bucket([]byte(bucketImporting)) != nil {
				return errImporting
			}
			return fn(&KeepTx{b: b})
		})
		if !errors.Is(err, errImporting) {
			return err
		}
		lock, err := s.LockShared(ctx, importLock, true)
		if err != nil {
			return err
		}
		err = s.settleImport(ctx)
		lock.Unlock()
		if err != nil {
			return err
		}
	}
}
