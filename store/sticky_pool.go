package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// bucketSticky is of keep.db; its keys are network and data directory, each a
// bucket, see StickyPool.
const bucketSticky = "sticky"

// A sticky pool is one bucket; the first byte of a key says what stands under
// it. The chunks of a Pool (see poolChunk) stand there too.
const (
	stickyRecord  = 'I' // identity: the Reservation
	stickyAddress = 'A' // address: the identity that it is kept for
	stickyWaiting = 'W' // when it is free, identity: until when it is kept, pinned; those that are not held
	stickyBoot    = 'B' // nothing: the boot that the pool was last used in
)

// StickyPool is the reservations of one address pool. It is valid within its
// transaction.
type StickyPool struct {
	id PoolID
	// b is nil when there is no such pool, in a KeepView.
	b *bolt.Bucket
	// bits are the addresses of all reservations.
	bits Pool
}

// Sticky returns the reservations of a pool. In a KeepUpdate a pool that does
// not exist is made, in a KeepView it is an empty one.
func (tx *KeepTx) Sticky(id PoolID) (*StickyPool, error) {
	key, err := storableKey("pool", id.Network, id.DataDir)
	if err != nil {
		return nil, err
	}
	var b *bolt.Bucket
	if tx.b == nil || !tx.b.Writable() {
		if all := bucketOf(tx.b, bucketSticky); all != nil {
			b = all.Bucket(key)
		}
	} else {
		all, err := writable(tx.b, bucketSticky)
		if err != nil {
			return nil, err
		}
		if b, err = all.CreateBucketIfNotExists(key); err != nil {
			return nil, fmt.Errorf("make reservations of network %.80q: %w", id.Network, err)
		}
	}
	return &StickyPool{id: id, b: b, bits: Pool{id: id, b: b}}, nil
}

// StickyPools returns the pools with reservations of a network, or of all with
// "", by network and data directory.
func (tx *KeepTx) StickyPools(network string) ([]PoolID, error) {
	var prefix []byte
	if network != "" {
		prefix = encodeKey(network)
	}
	return poolIDs(bucketOf(tx.b, bucketSticky), bucketSticky, prefix)
}

func (p *StickyPool) name() string { return fmt.Sprintf("reservations of network %.80q", p.id.Network) }

func (p *StickyPool) writable() error {
	if p.b == nil || !p.b.Writable() {
		return fmt.Errorf("%s: %w", p.name(), errReadOnly)
	}
	return nil
}

func identityKey(identity string) []byte { return append([]byte{stickyRecord}, identity...) }

// Reservation returns an identity's reservation, or an error that is ErrNotFound.
func (p *StickyPool) Reservation(identity string) (*Reservation, error) {
	key := identityKey(identity)
	var raw []byte
	if p.b != nil {
		raw = p.b.Get(key)
	}
	if raw == nil {
		return nil, fmt.Errorf("reservation for %.80q: %w", identity, ErrNotFound)
	}
	var r Reservation
	if err := decodeRecord(p.name(), key, raw, &r); err != nil {
		return nil, err
	}
	r.Identity = identity
	return &r, nil
}

// At returns the identity that an address is reserved for, expired or not;
// false when there is none.
func (p *StickyPool) At(addr netip.Addr) (identity string, ok bool, err error) {
	a, err := normal(addr)
	if err != nil || p.b == nil {
		return "", false, err
	}
	raw := p.b.Get(addrKey(stickyAddress, a))
	return string(raw), raw != nil, nil
}

// ReservationAt is the reservation of an address, or an error that is ErrNotFound.
func (p *StickyPool) ReservationAt(addr netip.Addr) (*Reservation, error) {
	identity, ok, err := p.At(addr)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("reservation of %s: %w", addr, ErrNotFound)
	}
	return p.Reservation(identity)
}

// Put stores a reservation in place of an older one of the identity. An address
// that is another's is taken from it: what is left of that one is kept no
// longer, since its addresses belong together, but still cools down.
func (p *StickyPool) Put(r *Reservation) error {
	if err := p.writable(); err != nil {
		return err
	}
	if _, err := storableKey("reservation", r.Identity, r.Pod); err != nil || r.Identity == "" {
		return errors.Join(err, fmt.Errorf("store reservation for %.80q: %w", r.Identity, ErrInvalid))
	}
	if len(r.Addresses) == 0 {
		return fmt.Errorf("store reservation for %.80q: %w: no address", r.Identity, ErrInvalid)
	}
	addrs := make([]netip.Addr, 0, len(r.Addresses))
	for _, a := range r.Addresses {
		a, err := normal(a)
		if err != nil {
			return err
		}
		if slices.Contains(addrs, a) {
			return fmt.Errorf("store reservation for %.80q: %w: %s twice", r.Identity, ErrInvalid, a)
		}
		if err := p.takeFrom(a, r.Identity); err != nil {
			return err
		}
		addrs = append(addrs, a)
	}
	if err := p.unindex(r.Identity); err != nil {
		return err
	}
	c := *r
	c.Addresses = addrs
	if err := putRecord(p.b, identityKey(r.Identity), &c); err != nil {
		return err
	}
	return p.index(&c)
}

// takeFrom takes an address from the reservation of another identity.
func (p *StickyPool) takeFrom(a netip.Addr, taker string) error {
	other, ok, err := p.At(a)
	if err != nil || !ok || other == taker {
		return err
	}
	r, err := p.Reservation(other)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrDamaged) {
		return p.Delete(other)
	}
	if err != nil {
		return err
	}
	r.Addresses = slices.DeleteFunc(r.Addresses, func(b netip.Addr) bool { return b == a })
	if len(r.Addresses) == 0 {
		return p.Delete(other)
	}
	r.TTL, r.Pinned, r.Until, r.Broken = 0, false, time.Time{}, true
	return p.Put(r)
}

// Delete deletes an identity's reservation, even one that cannot be decoded;
// none is fine.
func (p *StickyPool) Delete(identity string) error {
	if err := p.writable(); err != nil {
		return err
	}
	if err := p.unindex(identity); err != nil {
		return err
	}
	if err := p.b.Delete(identityKey(identity)); err != nil {
		return fmt.Errorf("delete reservation for %.80q: %w", identity, err)
	}
	return nil
}

// index notes where a reservation is found.
func (p *StickyPool) index(r *Reservation) error {
	for _, a := range r.Addresses {
		if err := p.b.Put(addrKey(stickyAddress, a), []byte(r.Identity)); err != nil {
			return fmt.Errorf("store reservation of %s: %w", a, err)
		}
		if err := p.bits.setBit(a, true); err != nil {
			return err
		}
	}
	if r.Held() {
		return nil
	}
	kept, _ := r.ends()
	value := append(binary.BigEndian.AppendUint64(nil, uint64(kept)), 0)
	if r.Pinned {
		value[8] = 1
	}
	if err := p.b.Put(waitingKey(r), value); err != nil {
		return fmt.Errorf("store reservation for %.80q: %w", r.Identity, err)
	}
	return nil
}

// waitingKey sorts reservations by when they are free.
func waitingKey(r *Reservation) []byte {
	_, free := r.ends()
	return append(binary.BigEndian.AppendUint64([]byte{stickyWaiting}, uint64(free)^1<<63), r.Identity...)
}

// unindex is index's inverse. Of a reservation that cannot be decoded all
// entries are looked for.
func (p *StickyPool) unindex(identity string) error {
	r, err := p.Reservation(identity)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return p.unindexAll(identity)
	}
	for _, a := range r.Addresses {
		if at, ok, err := p.At(a); err != nil || !ok || at != identity {
			continue
		}
		if err := p.dropAddress(a); err != nil {
			return err
		}
	}
	if err := p.b.Delete(waitingKey(r)); err != nil {
		return fmt.Errorf("delete reservation for %.80q: %w", identity, err)
	}
	return nil
}

func (p *StickyPool) unindexAll(identity string) error {
	var faults []error
	for _, k := range keysWith(p.b, []byte{stickyAddress}) {
		if a, ok := parseAddr(k[1:]); ok && string(p.b.Get(k)) == identity {
			faults = append(faults, p.dropAddress(a))
		}
	}
	for _, k := range keysWith(p.b, []byte{stickyWaiting}) {
		if len(k) > 9 && string(k[9:]) == identity {
			faults = append(faults, p.b.Delete(k))
		}
	}
	return errors.Join(faults...)
}

func (p *StickyPool) dropAddress(a netip.Addr) error {
	if err := p.b.Delete(addrKey(stickyAddress, a)); err != nil {
		return fmt.Errorf("delete reservation of %s: %w", a, err)
	}
	return p.bits.setBit(a, false)
}

// All goes through all reservations in the order of identities. One that cannot
// be decoded comes as an error, with its identity, and it goes on. The pool must
// not be changed meanwhile.
func (p *StickyPool) All() iter.Seq2[Reservation, error] {
	return func(yield func(Reservation, error) bool) {
		if p.b == nil {
			return
		}
		prefix := []byte{stickyRecord}
		c := p.b.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			var r Reservation
			err := decodeRecord(p.name(), k, v, &r)
			if err != nil {
				r = Reservation{}
			}
			r.Identity = string(k[1:])
			if !yield(r, err) {
				return
			}
		}
	}
}

// Waiting is a reservation that nobody holds, as far as it can be told without
// reading it.
type Waiting struct {
	Identity string
	Pinned   bool
	// kept and free are Reservation.ends.
	kept, free int64
}

// Stage is as [Reservation.Stage].
func (w *Waiting) Stage(now time.Time) Stage {
	switch at := nanos(now); {
	case at < w.kept:
		return Kept
	case at < w.free:
		return Cooling
	}
	return Expired
}

// Waiting goes through the reservations that nobody holds, in the order in
// which they become free. The pool must not be changed meanwhile.
func (p *StickyPool) Waiting() iter.Seq2[Waiting, error] {
	return func(yield func(Waiting, error) bool) {
		if p.b == nil {
			return
		}
		prefix := []byte{stickyWaiting}
		c := p.b.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			var w Waiting
			var err error
			if len(k) < 9 || len(v) < 9 {
				err = fmt.Errorf("decode key %.200q of %s: %w", k, p.name(), ErrDamaged)
			} else {
				w = Waiting{
					Identity: string(k[9:]), Pinned: v[8] != 0,
					kept: int64(binary.BigEndian.Uint64(v)), free: int64(binary.BigEndian.Uint64(k[1:]) ^ 1<<63),
				}
			}
			if !yield(w, err) {
				return
			}
		}
	}
}

// Forget deletes at most limit reservations, or with -1 all, that are free for
// others since a time, and tells how many. What is left of a pool that never runs out would grow for ever.
func (p *StickyPool) Forget(since time.Time, limit int) (int, error) {
	var gone []string
	for w, err := range p.Waiting() {
		if err != nil {
			return 0, err
		}
		if w.free > nanos(since) || len(gone) == limit {
			break
		}
		gone = append(gone, w.Identity)
	}
	for _, identity := range gone {
		if err := p.Delete(identity); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}

// Next returns the lowest address in [from, to] that no reservation has,
// expired or not; see Pool.Next.
func (p *StickyPool) Next(from, to netip.Addr) (netip.Addr, bool, error) {
	return p.bits.Next(from, to)
}

// Boot is the boot that SetBoot stored.
func (p *StickyPool) Boot() string {
	if p.b == nil {
		return ""
	}
	return string(p.b.Get([]byte{stickyBoot}))
}

// SetBoot stores in which boot the pool is used.
func (p *StickyPool) SetBoot(id string) error {
	if err := p.writable(); err != nil {
		return err
	}
	if err := p.b.Put([]byte{stickyBoot}, []byte(id)); err != nil {
		return fmt.Errorf("store boot of %s: %w", p.name(), err)
	}
	return nil
}
