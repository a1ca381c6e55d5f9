package pool

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// CloudDataDir is in place of the data directory of pools with addresses of a cloud. Such a pool
// records when an address was released, because a cloud's addresses belong to the node and not to one
// network.
const CloudDataDir = "cloud"

// RangeDataDir begins what is in place of the data directory of pools of cluster-wide ranges. They record
// when an address was released, because an address that was free for a short time is still in the
// neighbour caches of other nodes.
const RangeDataDir = "range:"

// FreedBucket is the bucket of node.db that has a bucket with the released
// addresses of each pool, under the pool's network and data directory.
const FreedBucket = "freed"

// The first byte of a key in such a bucket says what is stored under it, besides
// chunkKind.
const (
	freedKind     = 'A' // address: the time of its release, in nanoseconds
	freedTimeKind = 'W' // time of release, address: no value; the order of Oldest
)

// Freed has the released addresses of a pool. It is valid within its transaction.
type Freed struct{ bitmap }

// OpenFreed returns the released addresses of a pool. A pool whose data directory
// is neither CloudDataDir nor of RangeDataDir has none.
func OpenFreed(tx *bolt.Tx, id ID) (*Freed, error) {
	m, err := openBitmap(tx, FreedBucket, "released addresses", id)
	return &Freed{m}, err
}

// At returns when an address was released, or false if it was never leased or is leased now.
func (f *Freed) At(addr netip.Addr) (time.Time, bool) {
	a, err := normal(addr)
	raw := f.get(addrKey(freedKind, a))
	if err != nil || len(raw) != 8 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(raw))).UTC(), true
}

// FreedAddress is a released address.
type FreedAddress struct {
	Address  netip.Addr `json:"address"`
	Released time.Time  `json:"released"`
}

// Oldest returns all addresses in the order of their release. The pool must not be
// changed meanwhile.
func (f *Freed) Oldest() iter.Seq2[FreedAddress, error] {
	return func(yield func(FreedAddress, error) bool) {
		for k := range kv.WithPrefix(f.b, []byte{freedTimeKind}) {
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
	return FreedAddress{}, fmt.Errorf("decode key %.200q of %s: %w", k, f.name(), kv.ErrDamaged)
}

// Forget deletes the records of at most limit addresses that were released before a time, oldest first,
// so that the bucket of a large pool does not grow without bound. They then count as never leased.
func (f *Freed) Forget(before time.Time, limit int) error {
	var old []netip.Addr
	for one, err := range f.Oldest() {
		if err != nil {
			return err
		}
		if len(old) == limit || !one.Released.Before(before) {
			break
		}
		old = append(old, one.Address)
	}
	for _, a := range old {
		if err := f.drop(a); err != nil {
			return err
		}
	}
	return nil
}

// Record records an address as it is in a dump.
func (f *Freed) Record(one FreedAddress) error {
	a, err := normal(one.Address)
	if err == nil {
		err = f.writable()
	}
	if err != nil {
		return err
	}
	return f.put(a, one.Released)
}

// put records when an address was released.
func (f *Freed) put(a netip.Addr, at time.Time) error {
	if err := f.drop(a); err != nil {
		return err
	}
	stamp := binary.BigEndian.AppendUint64(nil, uint64(nanos(at)))
	if err := f.b.Put(addrKey(freedKind, a), stamp); err != nil {
		return fmt.Errorf("note release of %s: %w", a, err)
	}
	if err := f.b.Put(timeKey(at, a), nil); err != nil {
		return fmt.Errorf("note release of %s: %w", a, err)
	}
	return f.set(a, true)
}

// drop deletes the record of an address. A missing record is not an error.
func (f *Freed) drop(a netip.Addr) error {
	at, ok := f.At(a)
	if !ok {
		return nil
	}
	if err := f.b.Delete(timeKey(at, a)); err != nil {
		return fmt.Errorf("forget release of %s: %w", a, err)
	}
	if err := f.b.Delete(addrKey(freedKind, a)); err != nil {
		return fmt.Errorf("forget release of %s: %w", a, err)
	}
	return f.set(a, false)
}

// timeKey sorts by time, then by address.
func timeKey(at time.Time, a netip.Addr) []byte {
	return appendAddr(binary.BigEndian.AppendUint64([]byte{freedTimeKind}, uint64(nanos(at))^1<<63), a)
}
