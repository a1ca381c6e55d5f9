package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// StickyBucket is the bucket of keep.db that has a bucket with the reservations of
// each pool, under the pool's network and data directory.
const StickyBucket = "sticky"

// The first byte of a key in such a bucket says what is stored under it, besides
// chunkKind.
const (
	reservationKind = 'I' // identity: the Reservation
	reservedKind    = 'A' // address: the identity that it is reserved for
	waitingKind     = 'W' // when it is free, identity: until when it is kept, pinned; only if not held
	bootKind        = 'B' // nothing: the boot in which the pool was used last
)

// Sticky has the reservations of one address pool. It is valid within its transaction.
type Sticky struct{ bitmap }

// OpenSticky returns the reservations of a pool. A pool that does not exist is
// created if tx is writable, else it is empty.
func OpenSticky(tx *bolt.Tx, id ID) (*Sticky, error) {
	m, err := openBitmap(tx, StickyBucket, "reservations", id)
	return &Sticky{m}, err
}

// ListSticky returns the pools with reservations of a network, or of all with "",
// by network and data directory.
func ListSticky(tx *bolt.Tx, network string) ([]ID, error) { return list(tx, StickyBucket, network) }

func identityKey(identity string) []byte { return append([]byte{reservationKind}, identity...) }

// Reservation returns an identity's reservation, or an error that is ErrNotFound.
func (p *Sticky) Reservation(identity string) (*Reservation, error) {
	key := identityKey(identity)
	raw := p.get(key)
	if raw == nil {
		return nil, fmt.Errorf("reservation for %.80q: %w", identity, kv.ErrNotFound)
	}
	var r Reservation
	if err := kv.Decode(p.name(), key, raw, &r); err != nil {
		return nil, err
	}
	r.Identity = identity
	return &r, nil
}

// At returns the identity for which an address is reserved, also if the reservation has expired, or
// false if there is none.
func (p *Sticky) At(addr netip.Addr) (identity string, ok bool, err error) {
	a, err := normal(addr)
	if err != nil {
		return "", false, err
	}
	raw := p.get(addrKey(reservedKind, a))
	return string(raw), raw != nil, nil
}

// ReservationAt returns the reservation of an address, or an error that is ErrNotFound.
func (p *Sticky) ReservationAt(addr netip.Addr) (*Reservation, error) {
	identity, ok, err := p.At(addr)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("reservation of %s: %w", addr, kv.ErrNotFound)
	}
	return p.Reservation(identity)
}

// Put stores a reservation in place of an older one of the identity. It removes the addresses from the
// reservations of other identities. Such a reservation becomes Broken: its other addresses are not
// kept, because they belong together, but cool down.
func (p *Sticky) Put(r *Reservation) error {
	if err := p.writable(); err != nil {
		return err
	}
	if _, err := kv.StorableKey("reservation", r.Identity, r.Pod); err != nil || r.Identity == "" {
		return errors.Join(err, fmt.Errorf("store reservation for %.80q: %w", r.Identity, kv.ErrInvalid))
	}
	if len(r.Addresses) == 0 {
		return fmt.Errorf("store reservation for %.80q: %w: no address", r.Identity, kv.ErrInvalid)
	}
	addrs := make([]netip.Addr, 0, len(r.Addresses))
	for _, a := range r.Addresses {
		a, err := normal(a)
		if err != nil {
			return err
		}
		if slices.Contains(addrs, a) {
			return fmt.Errorf("store reservation for %.80q: %w: %s twice", r.Identity, kv.ErrInvalid, a)
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
	if err := kv.Put(p.b, identityKey(r.Identity), &c); err != nil {
		return err
	}
	return p.index(&c)
}

// takeFrom removes an address from the reservation of another identity.
func (p *Sticky) takeFrom(a netip.Addr, taker string) error {
	other, ok, err := p.At(a)
	if err != nil || !ok || other == taker {
		return err
	}
	r, err := p.Reservation(other)
	if errors.Is(err, kv.ErrNotFound) || errors.Is(err, kv.ErrDamaged) {
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

// Delete deletes an identity's reservation, even one that cannot be decoded. A
// missing reservation is not an error.
func (p *Sticky) Delete(identity string) error {
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

// index stores the index entries of a reservation.
func (p *Sticky) index(r *Reservation) error {
	for _, a := range r.Addresses {
		if err := p.b.Put(addrKey(reservedKind, a), []byte(r.Identity)); err != nil {
			return fmt.Errorf("store reservation of %s: %w", a, err)
		}
		if err := p.set(a, true); err != nil {
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

// waitingKey sorts reservations by the time at which they are free.
func waitingKey(r *Reservation) []byte {
	_, free := r.ends()
	return append(binary.BigEndian.AppendUint64([]byte{waitingKind}, uint64(free)^1<<63), r.Identity...)
}

// unindex deletes the index entries of a reservation. For one that cannot be decoded it searches all
// index entries.
func (p *Sticky) unindex(identity string) error {
	r, err := p.Reservation(identity)
	switch {
	case errors.Is(err, kv.ErrNotFound):
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

func (p *Sticky) unindexAll(identity string) error {
	var faults []error
	for _, k := range kv.KeysWithPrefix(p.b, []byte{reservedKind}) {
		if a, ok := parseAddr(k[1:]); ok && string(p.b.Get(k)) == identity {
			faults = append(faults, p.dropAddress(a))
		}
	}
	for _, k := range kv.KeysWithPrefix(p.b, []byte{waitingKind}) {
		if len(k) > 9 && string(k[9:]) == identity {
			faults = append(faults, p.b.Delete(k))
		}
	}
	return errors.Join(faults...)
}

func (p *Sticky) dropAddress(a netip.Addr) error {
	if err := p.b.Delete(addrKey(reservedKind, a)); err != nil {
		return fmt.Errorf("delete reservation of %s: %w", a, err)
	}
	return p.set(a, false)
}

// All returns all reservations in the order of identities. One that cannot be
// decoded gives an error, with its identity set, and the iteration continues. The
// pool must not be changed meanwhile.
func (p *Sticky) All() iter.Seq2[Reservation, error] {
	return func(yield func(Reservation, error) bool) {
		for k, v := range kv.WithPrefix(p.b, []byte{reservationKind}) {
			var r Reservation
			err := kv.Decode(p.name(), k, v, &r)
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

// Waiting is the index entry of a reservation that is not held.
type Waiting struct {
	Identity string
	Pinned   bool
	// kept and free are the results of Reservation.ends.
	kept, free int64
}

// Stage returns the reservation's stage at a time.
func (w *Waiting) Stage(now time.Time) Stage { return stage(now, w.kept, w.free) }

// Waiting returns the reservations that are not held, in the order in which they
// become free. The pool must not be changed meanwhile.
func (p *Sticky) Waiting() iter.Seq2[Waiting, error] {
	return func(yield func(Waiting, error) bool) {
		for k, v := range kv.WithPrefix(p.b, []byte{waitingKind}) {
			var w Waiting
			var err error
			if len(k) < 9 || len(v) < 9 {
				err = fmt.Errorf("decode key %.200q of %s: %w", k, p.name(), kv.ErrDamaged)
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

// Forget deletes reservations whose addresses have been free for other identities since a time: at most
// limit, or all with -1. It returns their number. Without it the number of reservations of a pool that
// is never exhausted would grow without bound.
func (p *Sticky) Forget(since time.Time, limit int) (int, error) {
	var free []string
	for w, err := range p.Waiting() {
		if err != nil {
			return 0, err
		}
		if w.free > nanos(since) || len(free) == limit {
			break
		}
		free = append(free, w.Identity)
	}
	for _, identity := range free {
		if err := p.Delete(identity); err != nil {
			return 0, err
		}
	}
	return len(free), nil
}

// Boot returns the boot that SetBoot stored.
func (p *Sticky) Boot() string { return string(p.get([]byte{bootKind})) }

// SetBoot stores the boot in which the pool is used.
func (p *Sticky) SetBoot(id string) error {
	if err := p.writable(); err != nil {
		return err
	}
	if err := p.b.Put([]byte{bootKind}, []byte(id)); err != nil {
		return fmt.Errorf("store boot of %s: %w", p.name(), err)
	}
	return nil
}
