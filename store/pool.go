package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"

	bolt "go.etcd.io/bbolt"
)

// A pool is one bucket; the first byte of a key says what stands under it.
const (
	poolLease  = 'L' // address: the Lease
	poolOwner  = 'O' // container ID, interface, address: nothing; the index of Owned
	poolChunk  = 'C' // first address of a chunk: the chunk's bitmap
	poolCursor = 'R' // set: the address handed out last, as text
)

// Pool is the leases of one address pool. It is valid within its transaction.
type Pool struct {
	id PoolID
	// b is nil when there is no such pool, in a View.
	b *bolt.Bucket
	// tx is nil where released addresses are not remembered.
	tx *Tx
	// seen is the chunk that Next read last.
	seen seenChunk
}

// Pool returns a pool. In an Update a pool that does not exist is made, in a
// View it is an empty one.
func (tx *Tx) Pool(id PoolID) (*Pool, error) {
	key, err := storableKey("pool", id.Network, id.DataDir)
	if err != nil {
		return nil, err
	}
	if tx.b == nil || !tx.b.Writable() {
		pools := bucketOf(tx.b, bucketPools)
		if pools == nil {
			return &Pool{id: id}, nil
		}
		return &Pool{id: id, b: pools.Bucket(key)}, nil
	}
	pools, err := writable(tx.b, bucketPools)
	if err != nil {
		return nil, err
	}
	b, err := pools.CreateBucketIfNotExists(key)
	if err != nil {
		return nil, fmt.Errorf("make pool of network %.80q: %w", id.Network, err)
	}
	p := &Pool{id: id, b: b}
	if id.remembers() {
		p.tx = tx
	}
	return p, nil
}

// Pools returns all pools, by network and data directory.
func (tx *Tx) Pools() ([]PoolID, error) {
	return tx.poolsWith(nil)
}

func (tx *Tx) poolsWith(prefix []byte) ([]PoolID, error) {
	return poolIDs(bucketOf(tx.b, bucketPools), bucketPools, prefix)
}

// poolIDs are the pools whose keys in a bucket begin with prefix.
func poolIDs(b *bolt.Bucket, bucket string, prefix []byte) ([]PoolID, error) {
	var ids []PoolID
	for _, k := range keysWith(b, prefix) {
		p, rest, err := decodeKey(k, 2)
		if err != nil {
			return ids, err
		}
		if len(rest) > 0 {
			return ids, fmt.Errorf("decode key %q of %s: %w", k, bucket, ErrDamaged)
		}
		ids = append(ids, PoolID{Network: p[0], DataDir: p[1]})
	}
	return ids, nil
}

// LeasesOf returns the leases of an owner in every pool of its network.
func (tx *Tx) LeasesOf(owner Key) ([]Lease, error) {
	var all []Lease
	err := tx.poolsOf(owner, func(p *Pool) error {
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
	err := tx.poolsOf(owner, func(p *Pool) error {
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

func (tx *Tx) poolsOf(owner Key, each func(*Pool) error) error {
	ids, err := tx.poolsWith(encodeKey(owner.Network))
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

// normal is an address as pools know it: a mapped one is an IPv4 address.
func normal(a netip.Addr) (netip.Addr, error) {
	if !a.IsValid() || a.Zone() != "" {
		return a, fmt.Errorf("address %q: %w: no address, or one with a zone", a, ErrInvalid)
	}
	return a.Unmap(), nil
}

// addrKey is kind, address family (4 or 6) and the address's bytes.
func addrKey(kind byte, a netip.Addr) []byte {
	key := make([]byte, 0, 18)
	return appendAddr(append(key, kind), a)
}

func appendAddr(key []byte, a netip.Addr) []byte {
	if a.Is4() {
		b := a.As4()
		return append(append(key, 4), b[:]...)
	}
	b := a.As16()
	return append(append(key, 6), b[:]...)
}

// parseAddr is appendAddr's inverse.
func parseAddr(b []byte) (netip.Addr, bool) {
	switch {
	case len(b) == 5 && b[0] == 4:
		return netip.AddrFrom4([4]byte(b[1:])), true
	case len(b) == 17 && b[0] == 6:
		return netip.AddrFrom16([16]byte(b[1:])), true
	}
	return netip.Addr{}, false
}

func ownerPrefix(owner Key) []byte {
	return append([]byte{poolOwner}, encodeKey(owner.ContainerID, owner.IfName)...)
}

func (p *Pool) writable() error {
	if p.b == nil || !p.b.Writable() {
		return fmt.Errorf("pool of network %.80q: %w", p.id.Network, errReadOnly)
	}
	return nil
}

func (p *Pool) name() string { return fmt.Sprintf("pool of network %.80q", p.id.Network) }

// Reserve stores a lease. When its address is taken, even by the same owner,
// the error is a TakenError with the holder.
func (p *Pool) Reserve(l Lease) error {
	if err := p.writable(); err != nil {
		return err
	}
	a, err := normal(l.Address)
	if err != nil {
		return err
	}
	l.Address = a
	if l.Owner.Network != p.id.Network {
		return fmt.Errorf("reserve %s: %w: owner of network %.80q in a pool of %.80q", a, ErrInvalid, l.Owner.Network, p.id.Network)
	}
	if _, err := l.Owner.storable("lease's owner"); err != nil {
		return err
	}
	key := addrKey(poolLease, a)
	if raw := p.b.Get(key); raw != nil {
		var held Lease
		if err := decodeRecord(p.name(), key, raw, &held); err != nil {
			return err
		}
		return &TakenError{What: "address " + a.String(), Owner: held.Owner}
	}
	if err := putRecord(p.b, key, l); err != nil {
		return err
	}
	if err := p.b.Put(appendAddr(ownerPrefix(l.Owner), a), nil); err != nil {
		return fmt.Errorf("reserve %s: %w", a, err)
	}
	if err := p.remember(a, false); err != nil {
		return err
	}
	return p.setBit(a, true)
}

// Lease returns an address's lease, or an error that is ErrNotFound.
func (p *Pool) Lease(addr netip.Addr) (*Lease, error) {
	a, err := normal(addr)
	if err != nil {
		return nil, err
	}
	key := addrKey(poolLease, a)
	if p.b == nil {
		return nil, fmt.Errorf("lease of %s: %w", a, ErrNotFound)
	}
	raw := p.b.Get(key)
	if raw == nil {
		return nil, fmt.Errorf("lease of %s: %w", a, ErrNotFound)
	}
	var l Lease
	if err := decodeRecord(p.name(), key, raw, &l); err != nil {
		return nil, err
	}
	return &l, nil
}

// Release deletes an address's lease, even one that cannot be decoded; none is
// fine. In a pool of CloudDataDir it notes the time.
func (p *Pool) Release(addr netip.Addr) error {
	if err := p.writable(); err != nil {
		return err
	}
	a, err := normal(addr)
	if err != nil {
		return err
	}
	l, err := p.Lease(a)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err == nil:
		if err := p.b.Delete(appendAddr(ownerPrefix(l.Owner), a)); err != nil {
			return fmt.Errorf("release %s: %w", a, err)
		}
	}
	if err := p.b.Delete(addrKey(poolLease, a)); err != nil {
		return fmt.Errorf("release %s: %w", a, err)
	}
	if err := p.remember(a, true); err != nil {
		return err
	}
	return p.setBit(a, false)
}

// remember notes that an address is free, or leased.
func (p *Pool) remember(a netip.Addr, free bool) error {
	if p.tx == nil {
		return nil
	}
	f, err := p.tx.Freed(p.id)
	if err != nil {
		return err
	}
	if !free {
		return f.drop(a)
	}
	return f.put(a, p.tx.clock())
}

// Leases goes through all leases in the order of addresses, IPv4 first. A record
// that cannot be decoded comes as an error, and it goes on. The pool must not be
// changed meanwhile.
func (p *Pool) Leases() iter.Seq2[Lease, error] {
	return func(yield func(Lease, error) bool) {
		if p.b == nil {
			return
		}
		prefix := []byte{poolLease}
		c := p.b.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			var l Lease
			err := decodeRecord(p.name(), k, v, &l)
			if err != nil {
				l = Lease{}
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// Owned returns the owner's leases in this pool, in the order of addresses. It
// reads no others.
func (p *Pool) Owned(owner Key) ([]Lease, error) {
	if owner.Network != p.id.Network {
		return nil, nil
	}
	prefix := ownerPrefix(owner)
	var own []Lease
	var faults []error
	for _, k := range keysWith(p.b, prefix) {
		a, ok := parseAddr(k[len(prefix):])
		if !ok {
			faults = append(faults, fmt.Errorf("decode key %.200q of %s: %w", k, p.name(), ErrDamaged))
			continue
		}
		l, err := p.Lease(a)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			faults = append(faults, err)
		case l.Owner == owner:
			own = append(own, *l)
		}
	}
	return own, errors.Join(faults...)
}

// Cursor returns the address that SetCursor stored for a range set.
func (p *Pool) Cursor(set int) (netip.Addr, bool, error) {
	key, err := cursorKey(set)
	if err != nil || p.b == nil {
		return netip.Addr{}, false, err
	}
	raw := p.b.Get(key)
	if raw == nil {
		return netip.Addr{}, false, nil
	}
	a, err := netip.ParseAddr(string(raw))
	if err != nil {
		return netip.Addr{}, false, fmt.Errorf("decode cursor %d of %s: %w: %w", set, p.name(), ErrDamaged, err)
	}
	return a, true, nil
}

// SetCursor stores the address that was handed out last from a range set.
func (p *Pool) SetCursor(set int, a netip.Addr) error {
	if err := p.writable(); err != nil {
		return err
	}
	key, err := cursorKey(set)
	if err != nil {
		return err
	}
	if a, err = normal(a); err != nil {
		return err
	}
	if err := p.b.Put(key, []byte(a.String())); err != nil {
		return fmt.Errorf("store cursor %d of %s: %w", set, p.name(), err)
	}
	return nil
}

func cursorKey(set int) ([]byte, error) {
	if set < 0 || set > math.MaxInt32 {
		return nil, fmt.Errorf("range set %d: %w", set, ErrInvalid)
	}
	return binary.BigEndian.AppendUint32([]byte{poolCursor}, uint32(set)), nil
}
