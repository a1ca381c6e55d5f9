package pool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/cnibox/cnibox/store/internal/record"
)

// bitmap is a set of addresses. Each chunk of chunkBits addresses, which begins at
// a multiple of chunkBits, is one entry of the bucket, with a bit for each address.
// So a free address is found without reading a lease. A chunk without an entry is
// empty; an entry of one byte stands for a full chunk.
type bitmap struct {
	id ID
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
	first number
	ok    bool
	bits  []byte
}

// name names the pool in errors.
func (m *bitmap) name() string { return fmt.Sprintf("pool of network %.80q", m.id.Network) }

// full reports whether all of a chunk is in use.
func full(chunk []byte) bool { return len(chunk) == 1 }

// checkChunk returns an error for a value that is not a chunk.
func (m *bitmap) checkChunk(key, chunk []byte) error {
	if len(chunk) != 1 && len(chunk) != chunkBytes {
		return fmt.Errorf("decode chunk %q of %s: %w: %d bytes", key, m.name(), record.ErrDamaged, len(chunk))
	}
	return nil
}

// set adds an address to the set, or removes it.
func (m *bitmap) set(a netip.Addr, used bool) error {
	chunk, bit := numberOf(a).split()
	m.last.ok = false
	key := addrKey(chunkKind, chunk.addr())
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

// next returns the lowest address in [from, to] that is not in the set, or false if there is none or
// from is above to. The cost grows with the number of full chunks, not with the range or the leases. A
// call may not see the writes of another value for the same bucket since an earlier call.
func (m *bitmap) next(from, to netip.Addr) (netip.Addr, bool, error) {
	from, err := normal(from)
	if err != nil {
		return netip.Addr{}, false, err
	}
	if to, err = normal(to); err != nil {
		return netip.Addr{}, false, err
	}
	if from.Is4() != to.Is4() {
		return netip.Addr{}, false, fmt.Errorf("range %s to %s: %w: of two families", from, to, record.ErrInvalid)
	}
	if to.Less(from) {
		return netip.Addr{}, false, nil
	}
	if m.b == nil {
		return from, true, nil
	}
	return m.nextFree(numberOf(from), numberOf(to))
}

// chunkAt returns the bits of a chunk, nil for an empty one.
func (m *bitmap) chunkAt(first number) ([]byte, error) {
	if m.last.ok && m.last.first == first {
		return m.last.bits, nil
	}
	key := addrKey(chunkKind, first.addr())
	raw := m.b.Get(key)
	if raw != nil {
		if err := m.checkChunk(key, raw); err != nil {
			return nil, err
		}
	}
	// A write invalidates the bytes that bbolt returned, so they are copied.
	m.last = readChunk{first: first, ok: true, bits: slices.Clone(raw)}
	return m.last.bits, nil
}

func (m *bitmap) nextFree(from, to number) (netip.Addr, bool, error) {
	chunk, first := from.split()
	final, end := to.split()
	if chunk == final {
		v, err := m.chunkAt(chunk)
		bit, ok := first, true
		if v != nil {
			bit, ok = firstFree(v, first, end)
		}
		if !ok || err != nil {
			return netip.Addr{}, false, err
		}
		chunk.lo += uint64(bit)
		return chunk.addr(), true, nil
	}
	c := m.b.Cursor()
	k, v := c.Seek(addrKey(chunkKind, chunk.addr()))
	for !final.less(chunk) {
		last := chunkBits - 1
		if chunk == final {
			last = end
		}
		bit, ok := first, true
		if bytes.Equal(k, addrKey(chunkKind, chunk.addr())) {
			if err := m.checkChunk(k, v); err != nil {
				return netip.Addr{}, false, err
			}
			bit, ok = firstFree(v, first, last)
		}
		if ok {
			chunk.lo += uint64(bit)
			return chunk.addr(), true, nil
		}
		if chunk, ok = chunk.next(); !ok {
			break
		}
		first = 0
		k, v = c.Next()
	}
	return netip.Addr{}, false, nil
}

// count returns the number of addresses in the set. It reads chunks, not leases.
func (m *bitmap) count() (int, error) {
	n := 0
	for k, v := range record.WithPrefix(m.b, []byte{chunkKind}) {
		n += ones(v)
		if err := m.checkChunk(k, v); err != nil {
			return n, err
		}
	}
	return n, nil
}
