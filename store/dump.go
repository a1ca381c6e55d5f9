package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Dump is all that node.db holds, as JSON. Fields that it does not know are
// skipped when it is decoded.
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
	// Cursors are the addresses handed out last, by range set.
	Cursors map[int]netip.Addr `json:"cursors,omitempty"`
}

// Export returns everything that is stored. Records that cannot be decoded are
// left out; the error, which is ErrDamaged then, names them.
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
		pd.Cursors, err = p.cursors()
		faults = append(faults, err)
		all = append(all, pd)
	}
	return all, errors.Join(faults...)
}

func (p *Pool) cursors() (map[int]netip.Addr, error) {
	var faults []error
	all := map[int]netip.Addr{}
	for _, k := range keysWith(p.b, []byte{poolCursor}) {
		if len(k) != 5 {
			faults = append(faults, fmt.Errorf("decode key %q of %s: %w", k, p.name(), ErrDamaged))
			continue
		}
		set := int(binary.BigEndian.Uint32(k[1:]))
		a, ok, err := p.Cursor(set)
		if ok {
			all[set] = a
		}
		faults = append(faults, err)
	}
	return all, errors.Join(faults...)
}

// Import stores a dump: beside what is there, or with replace in its place. A
// record of the same key is overwritten; an address or a claim that somebody
// else holds is a TakenError, a faulty record ErrInvalid. After an error the
// transaction must not be committed.
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
	if err := p.writable(); err != nil {
		return err
	}
	for i, l := range pd.Leases {
		held, err := p.heldBy(l)
		if err != nil {
			return fmt.Errorf("leases[%d]: %w", i, err)
		}
		if held {
			if err := p.Release(l.Address); err != nil {
				return fmt.Errorf("leases[%d]: %w", i, err)
			}
		}
		if err := p.Reserve(l); err != nil {
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

// heldBy tells whether the lease's owner has its address already.
func (p *Pool) heldBy(l Lease) (bool, error) {
	held, err := p.Lease(l.Address)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return held.Owner == l.Owner, nil
}

// clear empties all buckets but the file's own description.
func (tx *Tx) clear() error {
	for _, name := range []string{bucketAttachments, bucketNetworks, bucketClaims, bucketClaimOwners, bucketPools, bucketFreed} {
		if _, err := writable(tx.b, name); err != nil {
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
