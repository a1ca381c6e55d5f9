package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/boltfile"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// Dump is the whole content of node.db, and the delegations of keep.db, without which
// the networks of a meta role cannot be removed, for JSON. Unknown fields are ignored
// when it is decoded. What is derived from other records is not in it.
type Dump struct {
	Info        Info         `json:"info"`
	Attachments []Attachment `json:"attachments"`
	Networks    []Network    `json:"networks"`
	Pools       []PoolDump   `json:"pools"`
	Claims      []Claim      `json:"claims"`
	// Cloud has the cloud sources, Delegated the outcomes of delegations.
	Cloud             []CloudSource      `json:"cloud,omitempty"`
	Delegated         []Delegated        `json:"delegated,omitempty"`
	DelegatedNetworks []DelegatedNetwork `json:"delegatedNetworks,omitempty"`
	// Delegations are those of keep.db; see KeepTx.ImportDelegations. An export has an empty
	// list if there are none: a file without the list is not an export.
	Delegations []Delegation `json:"delegations"`
}

// PoolDump is one pool of a Dump.
type PoolDump struct {
	PoolID
	Leases []Lease `json:"leases"`
	// Cursors are the addresses that were allocated last, by range set.
	Cursors map[int]netip.Addr `json:"cursors,omitempty"`
	// Freed are the addresses that were leased, in the order of their release.
	Freed []FreedAddress `json:"freed,omitempty"`
}

// Export returns everything that is stored in node.db. Records that cannot be decoded are
// skipped and named in the error, which is ErrDamaged then.
func (tx *Tx) Export() (*Dump, error) {
	var d Dump
	var faults [8]error
	d.Info, faults[0] = tx.Info()
	d.Attachments, faults[1] = tx.Attachments("")
	d.Networks, faults[2] = tx.Networks()
	d.Claims, faults[3] = tx.Claims("")
	d.Pools, faults[4] = tx.exportPools()
	d.Cloud, faults[5] = tx.CloudSources()
	d.Delegated, faults[6] = tx.AllDelegated()
	d.DelegatedNetworks, faults[7] = tx.DelegatedNetworks("")
	return &d, errors.Join(faults[:]...)
}

func (tx *Tx) exportPools() ([]PoolDump, error) {
	var all []PoolDump
	err := tx.EachPool("", func(p *Pool) error {
		freed, err := tx.Freed(p.ID())
		if err != nil {
			return err
		}
		one := PoolDump{PoolID: p.ID()}
		var faults [3]error
		one.Leases, faults[0] = Collect(p.Leases())
		one.Cursors, faults[1] = p.Cursors()
		one.Freed, faults[2] = Collect(freed.Oldest())
		all = append(all, one)
		return errors.Join(faults[:]...)
	})
	return all, err
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
	claim := func(c *Claim) error { return tx.Claim(c.Resource(), c.Owner, c.Time) }
	importPool := func(p *PoolDump) error { return tx.importPool(*p) }
	return cmp.Or(
		importAll("attachments", d.Attachments, tx.PutAttachment), importAll("networks", d.Networks, tx.PutNetwork),
		importAll("claims", d.Claims, claim), importAll("cloud", d.Cloud, tx.PutCloudSource),
		importAll("delegated", d.Delegated, tx.PutDelegated),
		importAll("delegatedNetworks", d.DelegatedNetworks, tx.PutDelegatedNetwork), importAll("pools", d.Pools, importPool),
	)
}

// importAll calls put with the records of a list of a dump until there is an error.
func importAll[T any](list string, records []T, put func(*T) error) error {
	for i := range records {
		if err := put(&records[i]); err != nil {
			return fmt.Errorf("import %s[%d]: %w", list, i, err)
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
	if len(pd.Freed) == 0 {
		return nil
	}
	freed, err := tx.Freed(pd.PoolID)
	if err != nil {
		return err
	}
	for i, one := range pd.Freed {
		if _, err := p.Lease(one.Address); err == nil {
			continue // leased again since
		}
		if err := freed.Record(one); err != nil {
			return fmt.Errorf("freed[%d]: %w", i, err)
		}
	}
	return nil
}

// ImportDelegations adds delegations to the stored ones, or with replace replaces them.
func (tx *KeepTx) ImportDelegations(all []Delegation, replace bool) error {
	if replace {
		if err := empty(tx.b, bucketDelegations); err != nil {
			return err
		}
	}
	return importAll("delegations", all, tx.PutDelegation)
}

// clear empties all buckets but the one of the file's Info.
func (tx *Tx) clear() error {
	var names []string
	if tx.b != nil {
		err := tx.b.ForEach(func(name []byte, _ *bolt.Bucket) error {
			if string(name) != boltfile.BucketInfo && string(name) != bucketMarks { // a dump has no marks
				names = append(names, string(name))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list buckets: %w", err)
		}
	}
	return empty(tx.b, names...)
}

func empty(tx *bolt.Tx, buckets ...string) error {
	for _, name := range buckets {
		if _, err := kv.Writable(tx, name); err != nil {
			return err
		}
		if err := tx.DeleteBucket([]byte(name)); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	return nil
}
