package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"time"

	bolt "go.etcd.io/bbolt"
)

// CloudDataDir stands for the data directory of pools whose addresses a cloud
// gives. They are the node's, whatever the network, and it is remembered when
// one was released.
const CloudDataDir = "cloud"

// bucketFreed is of node.db; its keys are a pool's network and data directory,
// each a bucket, whose keys begin with what stands under them.
const bucketFreed = "freed"

const (
	freedAddress = 'A' // address: when it was released, nanoseconds
	freedTime    = 'W' // when it was released, address: nothing; the order of Oldest
)

// remembers tells whether released addresses of a pool are Freed.
func (id PoolID) remembers() bool { return id.DataDir == CloudDataDir }

// Freed are the addresses of a pool that are not leased and were before. It is
// valid within its transaction.
type Freed struct {
	// b is nil when there are none, in a View.
	b *bolt.Bucket
	// bits are the addresses.
	bits Pool
}

// Freed returns what is remembered of a pool's released addresses: nothing but
// for one of CloudDataDir.
func (tx *Tx) Freed(id PoolID) (*Freed, error) { return freedOf(tx.b, id) }

func freedOf(tx *bolt.Tx, id PoolID) (*Freed, error) {
	key, err := storableKey("pool", id.Network, id.DataDir)
	if err != nil {
		return nil, err
	}
	var b *bolt.Bucket
	if tx == nil || !tx.Writable() {
		if all := bucketOf(tx, bucketFreed); all != nil {
			b = all.Bucket(key)
		}
	} else {
		all, err := writable(tx, bucketFreed)
		if err != nil {
			return nil, err
		}
		if b, err = all.CreateBucketIfNotExists(key); err != nil {
			return nil, fmt.Errorf("make released addresses of network %.80q: %w", id.Network, err)
		}
	}
	return &Freed{b: b, bits: Pool{id: id, b: b}}, nil
}

// At is when an address was released; false when it never was, or is leased.
func (f *Freed) At(addr netip.Addr) (time.Time, bool) {
	a, err := normal(addr)
	if err != nil || f.b == nil {
		return time.Time{}, false
	}
	raw := f.b.Get(addrKey(freedAddress, a))
	if len(raw) != 8 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(raw))).UTC(), true
}

// Next returns the lowest address in [from, to] that was never released, or is
// leased; see Pool.Next.
func (f *Freed) Next(from, to netip.Addr) (netip.Addr, bool, error) { return f.bits.Next(from, to) }

// FreedAddress is one address that is not leased and was before.
type FreedAddress struct {
	Address  netip.Addr `json:"address"`
	Released time.Time  `json:"released"`
}

// Oldest goes through all addresses, beginning with the one that was released
// first. The pool must not be changed meanwhile.
func (f *Freed) Oldest() iter.Seq2[FreedAddress, error] {
	return func(yield func(FreedAddress, error) bool) {
		if f.b == nil {
			return
		}
		c := f.b.Cursor()
		prefix := []byte{freedTime}
		for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			one, err := f.decode(k)
			if !yield(one, err) {
				return
			}
		}
	}
}

func (f *Freed) decode(k []byte) (FreedAddress, error) {
	if len(k) > 9 {
		if a, ok := parseAddr(k[9:]); ok {
			return FreedAddress{a, time.Unix(0, int64(binary.BigEndian.Uint64(k[1:])^1<<63)).UTC()}, nil
		}
	}
	return FreedAddress{}, fmt.Errorf("decode key %.200q of %s: %w", k, f.bits.name(), ErrDamaged)
}

// Forget forgets at most limit addresses that were released before a time: they
// count as never leased then. A large pool would grow for ever.
func (f *Freed) Forget(before time.Time, limit int) error {
	var gone []netip.Addr
	for one, err := range f.Oldest() {
		if err != nil {
			return err
		}
		if len(gone) == limit || !one.Released.Before(before) {
			break
		}
		gone = append(gone, one.Address)
	}
	for _, a := range gone {
		if err := f.drop(a); err != nil {
			return err
		}
	}
	return nil
}

// put notes when an address was released.
func (f *Freed) put(a netip.Addr, at time.Time) error {
	if err := f.drop(a); err != nil {
		return err
	}
	stamp := binary.BigEndian.AppendUint64(nil, uint64(nanos(at)))
	if err := f.b.Put(addrKey(freedAddress, a), stamp); err != nil {
		return fmt.Errorf("note release of %s: %w", a, err)
	}
	if err := f.b.Put(timeKey(at, a), nil); err != nil {
		return fmt.Errorf("note release of %s: %w", a, err)
	}
	return f.bits.setBit(a, true)
}

// drop forgets an address; none is fine.
func (f *Freed) drop(a netip.Addr) error {
	at, ok := f.At(a)
	if !ok {
		return nil
	}
	if err := f.b.Delete(timeKey(at, a)); err != nil {
		return fmt.Errorf("forget release of %s: %w", a, err)
	}
	if err := f.b.Delete(addrKey(freedAddress, a)); err != nil {
		return fmt.Errorf("forget release of %s: %w", a, err)
	}
	return f.bits.setBit(a, false)
}

// timeKey sorts by time, then by address.
func timeKey(at time.Time, a netip.Addr) []byte {
	return appendAddr(binary.BigEndian.AppendUint64([]byte{freedTime}, uint64(nanos(at))^1<<63), a)
}
