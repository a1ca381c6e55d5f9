package pool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// bitmap is a pool's bucket with a set of addresses. Each chunk of chunkBits addresses,
// which begins at a multiple of chunkBits, is one entry of the bucket, with a bit for
// each address. So a free address is found without reading a lease. A chunk without an
// entry is empty; an entry of one byte stands for a full chunk.
type bitmap struct {
	id ID
	// what names the bucket's content in errors.
	what string
	// b is nil when the pool does not exist, in a read-only transaction.
	b *bolt.Bucket
	// last is the chunk that Next read last.
	last readChunk
}

const (
	chunkBits  = 4096
	chunkBytes = chunkBits / 8
	// chunkKind begins the key of a chunk; the chunk's first address follows.
	chunkKind = 'C'
)

// readChunk is the last chunk that was read. A search through many small ranges reads the same chunk
// many times.
type readChunk struct {
	first netip.Addr
	bits  []byte
}

// openBitmap returns a pool's bucket in the bucket all. If tx is writable, a missing
// bucket is created.
func openBitmap(tx *bolt.Tx, all, what string, id ID) (bitmap, error) {
	m := bitmap{id: id, what: what}
	key, err := kv.StorableKey("pool", id.Network, id.DataDir)
	if err != nil {
		return m, err
	}
	if tx == nil || !tx.Writable() {
		if parent := kv.Bucket(tx, all); parent != nil {
			m.b = parent.Bucket(key)
		}
		return m, nil
	}
	parent, err := kv.Writable(tx, all)
	if err != nil {
		return m, err
	}
	m.b, err = parent.CreateBucketIfNotExists(key)
	if err != nil {
		return m, fmt.Errorf("make %s: %w", m.name(), err)
	}
	return m, nil
}

// ID returns the pool's ID.
func (m *bitmap) ID() ID { return m.id }

// name names the bucket in errors.
func (m *bitmap) name() string { return fmt.Sprintf("%s of network %.80q", m.what, m.id.Network) }

// get returns the value of a key, or nil.
func (m *bitmap) get(key []byte) []byte {
	if m.b == nil {
		return nil
	}
	return m.b.Get(key)
}

// writable returns an error in a read-only transaction.
func (m *bitmap) writable() error {
	if m.b == nil || !m.b.Writable() {
		return fmt.Errorf("%s: %w", m.name(), kv.ErrReadOnly)
	}
	return nil
}

// full reports whether all of a chunk is in use.
func full(chunk []byte) bool { return len(chunk) == 1 }

// checkChunk returns an error for a value that is not a chunk.
func (m *bitmap) checkChunk(key, chunk []byte) error {
	if len(chunk) != 1 && len(chunk) != chunkBytes {
		return fmt.Errorf("decode chunk %q of %s: %w: %d bytes", key, m.name(), kv.ErrDamaged, len(chunk))
	}
	return nil
}

// set adds an address to the set, or removes it.
func (m *bitmap) set(a netip.Addr, used bool) error {
	chunk, bit := split(a)
	m.last = readChunk{}
	key := addrKey(chunkKind, chunk)
	old := m.b.Get(key)
	if old != nil {
		if err := m.checkChunk(key, old); err != nil {
			return err
		}
	}
	var raw [chunkBytes]byte
	if full(old) {
		for i := range raw {
			raw[i] = 0xff
		}
	} else {
		copy(raw[:], old)
	}
	if used {
		raw[bit/8] |= 1 << (bit % 8)
	} else {
		raw[bit/8] &^= 1 << (bit % 8)
	}
	var err error
	switch n := ones(raw[:]); n {
	case 0:
		err = m.b.Delete(key)
	case chunkBits:
		err = m.b.Put(key, []byte{0xff})
	default:
		err = m.b.Put(key, raw[:])
	}
	if err != nil {
		return fmt.Errorf("store chunk of %s: %w", a, err)
	}
	return nil
}

func ones(chunk []byte) int {
	if full(chunk) {
		return chunkBits
	}
	n := 0
	for i := 0; i+8 <= len(chunk); i += 8 {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(chunk[i:]))
	}
	return n
}

// firstFree returns the lowest free bit of a chunk in [from, to], or false if there is none.
func firstFree(chunk []byte, from, to int) (int, bool) {
	if full(chunk) {
		return 0, false
	}
	for word := from / 64; word <= to/64; word++ {
		free := ^binary.LittleEndian.Uint64(chunk[word*8:])
		if word == from/64 {
			free &= ^uint64(0) << (from % 64)
		}
		if free != 0 {
			bit := word*64 + bits.TrailingZeros64(free)
			return bit, bit <= to
		}
	}
	return 0, false
}

// Next returns the lowest address in [from, to] that has no lease, no reservation, or no recorded release,
// depending on the pool's kind. It returns false if there is none or from is above to. The cost grows with
// the number of full chunks of 4096 addresses, not with the range or the leases. A call may not see the
// writes of another value for the same pool since an earlier call.
func (m *bitmap) Next(from, to netip.Addr) (netip.Addr, bool, error) {
	from, err := normal(from)
	if err != nil {
		return netip.Addr{}, false, err
	}
	if to, err = normal(to); err != nil {
		return netip.Addr{}, false, err
	}
	if from.Is4() != to.Is4() {
		return netip.Addr{}, false, fmt.Errorf("range %s to %s: %w: of two families", from, to, kv.ErrInvalid)
	}
	if to.Less(from) {
		return netip.Addr{}, false, nil
	}
	if m.b == nil {
		return from, true, nil
	}
	return m.nextFree(from, to)
}

// chunkAt returns the bits of a chunk, nil for an empty one.
func (m *bitmap) chunkAt(first netip.Addr) ([]byte, error) {
	if m.last.first == first {
		return m.last.bits, nil
	}
	key := addrKey(chunkKind, first)
	raw := m.b.Get(key)
	if raw != nil {
		if err := m.checkChunk(key, raw); err != nil {
			return nil, err
		}
	}
	// A write invalidates the bytes that bbolt returned, so they are copied.
	m.last = readChunk{first: first, bits: slices.Clone(raw)}
	return m.last.bits, nil
}

func (m *bitmap) nextFree(from, to netip.Addr) (netip.Addr, bool, error) {
	chunk, first := split(from)
	final, end := split(to)
	if chunk == final {
		v, err := m.chunkAt(chunk)
		bit, ok := first, true
		if v != nil {
			bit, ok = firstFree(v, first, end)
		}
		if !ok || err != nil {
			return netip.Addr{}, false, err
		}
		return withBit(chunk, bit), true, nil
	}
	c := m.b.Cursor()
	k, v := c.Seek(addrKey(chunkKind, chunk))
	for chunk.IsValid() && !final.Less(chunk) {
		last := chunkBits - 1
		if chunk == final {
			last = end
		}
		bit, ok := first, true
		if bytes.Equal(k, addrKey(chunkKind, chunk)) {
			if err := m.checkChunk(k, v); err != nil {
				return netip.Addr{}, false, err
			}
			bit, ok = firstFree(v, first, last)
		}
		if ok {
			return withBit(chunk, bit), true, nil
		}
		chunk, first = withBit(chunk, chunkBits-1).Next(), 0
		k, v = c.Next()
	}
	return netip.Addr{}, false, nil
}

// Count returns the number of addresses in the set without reading what belongs to them.
func (m *bitmap) Count() (int, error) {
	n := 0
	for k, v := range kv.WithPrefix(m.b, []byte{chunkKind}) {
		n += ones(v)
		if err := m.checkChunk(k, v); err != nil {
			return n, err
		}
	}
	return n, nil
}
