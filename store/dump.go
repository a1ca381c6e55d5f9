package store

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/store/internal/pool"
	"github.com/cnibox/cnibox/store/internal/record"
)

// Dump is the whole content of node.db, for JSON. Unknown fields are ignored when it
// is decoded.
type Dump struct {
	Info        Info         `json:"info"`
	Attachments []Attachment `json:"attachments"`
	Networks    []Network    `json:"networks"`
	Pools       []PoolDump   `json:"pools"`
	Claims      []Claim      `json:"claims"`
}

// PoolDump is one pool of a Dump.
type PoolDump struct {
	PoolID
	Leases []Lease `json:"leases"`
	// Cursors are the addresses that were allocated last, by range set.
	Cursors map[int]netip.Addr `json:"cursors,omitempty"`
}

// Export returns everything that is stored. Records that cannot be decoded are
// skipped and named in the error, which is ErrDamaged then.
func (tx *Tx) Export() (*Dump, error) {
	var d Dump
	var faults [5]error
	d.Info, faults[0] = tx.Info()
	d.Attachments, faults[1] = tx.Attachments("")
	d.Networks, faults[2] = tx.Networks()
	d.Claims, faults[3] = tx.Claims("")
	d.Pools, faults[4] = tx.exportPools()
	return &d, errors.Join(faults[:]...)
}

func (tx *Tx) exportPools() ([]PoolDump, error) {
	ids, err := tx.Pools()
	faults := []error{err}
	var all []PoolDump
	for _, id := range ids {
		p, err := tx.Pool(id)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		pd := PoolDump{PoolID: id}
		for l, err := range p.Leases() {
			if err != nil {
				faults = append(faults, err)
				continue
			}
			pd.Leases = append(pd.Leases, l)
		}
		pd.Cursors, err = p.Cursors()
		faults = append(faults, err)
		all = append(all, pd)
	}
	return all, errors.Join(faults...)
}

// Import adds a dump to the stored records, or with replace replaces them. A record with the same key
// is overwritten. For an address or a claim of another owner the error is a TakenError, for an invalid
// record ErrInvalid. After an error the transaction must not be committed.
func (tx *Tx) Import(d *Dump, replace bool) error {
	if replace {
		if err := tx.clear(); err != nil {
			return err
		}
	}
	for i := range d.Attachments {
		if err := tx.PutAttachment(&d.Attachments[i]); err != nil {
			return fmt.Errorf("import attachments[%d]: %w", i, err)
		}
	}
	for i := range d.Networks {
		if err := tx.PutNetwork(&d.Networks[i]); err != nil {
			return fmt.Errorf("import networks[%d]: %w", i, err)
		}
	}
	for i, c := range d.Claims {
		if err := tx.Claim(c.Kind, c.Name, c.Owner, c.Time); err != nil {
			return fmt.Errorf("import claims[%d]: %w", i, err)
		}
	}
	for i, pd := range d.Pools {
		if err := tx.importPool(pd); err != nil {
			return fmt.Errorf("import pools[%d]: %w", i, err)
		}
	}
	return nil
}

func (tx *Tx) importPool(pd PoolDump) error {
	p, err := tx.Pool(pd.PoolID)
	if err != nil {
		return err
	}
	for i, l := range pd.Leases {
		if err := p.Replace(l); err != nil {
			return fmt.Errorf("leases[%d]: %w", i, err)
		}
	}
	for _, set := range slices.Sorted(maps.Keys(pd.Cursors)) {
		if err := p.SetCursor(set, pd.Cursors[set]); err != nil {
			return fmt.Errorf("cursors[%d]: %w", set, err)
		}
	}
	return nil
}

// clear empties all buckets that Import fills. The file's Info stays.
func (tx *Tx) clear() error {
	for _, name := range []string{bucketAttachments, bucketNetworks, bucketClaims, bucketClaimOwners, pool.Bucket, pool.FreedBucket} {
		if _, err := record.Writable(tx.b, name); err != nil {
			return err
		}
		if err := tx.b.DeleteBucket([]byte(name)); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
		if _, err := tx.b.CreateBucket([]byte(name)); err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	return nil
}
