package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// The addresses in use are also bits, in chunks of chunkBits addresses that
// begin at a multiple of it: a free address is found without looking at leases.
// A chunk without a key is free altogether, one whose value is a single byte is
// in use altogether.
const (
	chunkBits  = 4096
	chunkBytes = chunkBits / 8
)

// number is an address to reckon with.
type number struct {
	hi, lo uint64
	v4     bool
}

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{lo: uint64(binary.BigEndian.Uint32(b[:])), v4: true}
	}
	b := a.As16()
	return number{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

func (n number) addr() netip.Addr {
	if n.v4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

// split is the chunk's first address and the bit within it.
func (n number) split() (chunk number, bit int) {
	bit = int(n.lo % chunkBits)
	n.lo -= uint64(bit)
	return n, bit
}

// next is the chunk after this one; false after the last. After IPv4's last
// comes one that is above every address.
func (n number) next() (number, bool) {
	n.lo += chunkBits
	if n.lo == 0 {
		n.hi++
		return n, n.hi != 0
	}
	return n, true
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

// full tells a chunk that is in use altogether.
func full(chunk []byte) bool { return len(chunk) == 1 }

// checkChunk refuses values that are no chunk.
func (p *Pool) checkChunk(key, chunk []byte) error {
	if len(chunk) != 1 && len(chunk) != chunkBytes {
		return fmt.Errorf("decode chunk %q of %s: %w: %d bytes", key, p.name(), ErrDamaged, len(chunk))
	}
	return nil
}

// setBit notes that an address is in use, or free.
func (p *Pool) setBit(a netip.Addr, used bool) error {
	chunk, bit := numberOf(a).split()
	p.seen.ok = false
	key := addrKey(poolChunk, chunk.addr())
	old := p.b.Get(key)
	if old != nil {
		if err := p.checkChunk(key, old); err != nil {
			return err
		}
	}
	var m [chunkBytes]byte
	if full(old) {
		for i := range m {
			m[i] = 0xff
		}
	} else {
		copy(m[:], old)
	}
	if used {
		m[bit/8] |= 1 << (bit % 8)
	} else {
		m[bit/8] &^= 1 << (bit % 8)
	}
	var err error
	switch n := ones(m[:]); n {
	case 0:
		err = p.b.Delete(key)
	case chunkBits:
		err = p.b.Put(key, []byte{0xff})
	default:
		err = p.b.Put(key, m[:])
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

// firstFree is the lowest free bit of a chunk in [from, to]; false without.
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

// Next returns the lowest free address in [from, to]; false when there is none,
// or when from is above to. Its cost grows with the chunks of 4096 addresses
// that are in use altogether, not with the range or the leases. What another Pool
// value of the same pool has written since an earlier call it may not see.
func (p *Pool) Next(from, to netip.Addr) (netip.Addr, bool, error) {
	from, err := normal(from)
	if err != nil {
		return netip.Addr{}, false, err
	}
	if to, err = normal(to); err != nil {
		return netip.Addr{}, false, err
	}
	if from.Is4() != to.Is4() {
		return netip.Addr{}, false, fmt.Errorf("range %s to %s: %w: of two families", from, to, ErrInvalid)
	}
	if to.Less(from) {
		return netip.Addr{}, false, nil
	}
	if p.b == nil {
		return from, true, nil
	}
	return p.nextFree(numberOf(from), numberOf(to))
}

// seenChunk is a chunk as it was read. Who looks for a free address among many
// small ranges comes to the same one again and again.
type seenChunk struct {
	first number
	ok    bool
	bits  []byte
}

// chunkAt returns the bits of a chunk, nil for none.
func (p *Pool) chunkAt(first number) ([]byte, error) {
	if p.seen.ok && p.seen.first == first {
		return p.seen.bits, nil
	}
	key := addrKey(poolChunk, first.addr())
	raw := p.b.Get(key)
	if raw != nil {
		if err := p.checkChunk(key, raw); err != nil {
			return nil, err
		}
	}
	// A write may move what bbolt returned.
	p.seen = seenChunk{first: first, ok: true, bits: slices.Clone(raw)}
	return p.seen.bits, nil
}

func (p *Pool) nextFree(from, to number) (netip.Addr, bool, error) {
	chunk, first := from.split()
	final, end := to.split()
	if chunk == final {
		v, err := p.chunkAt(chunk)
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
	c := p.b.Cursor()
	k, v := c.Seek(addrKey(poolChunk, chunk.addr()))
	for !final.less(chunk) {
		last := chunkBits - 1
		if chunk == final {
			last = end
		}
		bit, ok := first, true
		if bytes.Equal(k, addrKey(poolChunk, chunk.addr())) {
			if err := p.checkChunk(k, v); err != nil {
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

// Count returns the number of leases. It counts bits, not records.
func (p *Pool) Count() (int, error) {
	if p.b == nil {
		return 0, nil
	}
	n := 0
	err := eachChunk(p.b, func(k, v []byte) error {
		n += ones(v)
		return p.checkChunk(k, v)
	})
	return n, err
}

func eachChunk(b *bolt.Bucket, each func(k, v []byte) error) error {
	prefix := []byte{poolChunk}
	c := b.Cursor()
	for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if err := each(k, v); err != nil {
			return err
		}
	}
	return nil
}
