package pool

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"github.com/cnibox/cnibox/store/internal/record"
)

// normal returns the form in which pools store an address: IPv4 for a mapped one.
func normal(a netip.Addr) (netip.Addr, error) {
	if !a.IsValid() || a.Zone() != "" {
		return a, fmt.Errorf("address %q: %w: not an address, or one with a zone", a, record.ErrInvalid)
	}
	return a.Unmap(), nil
}

// addrKey returns a key: kind, address family (4 or 6) and the address's bytes.
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

// parseAddr is the inverse of appendAddr.
func parseAddr(b []byte) (netip.Addr, bool) {
	switch {
	case len(b) == 5 && b[0] == 4:
		return netip.AddrFrom4([4]byte(b[1:])), true
	case len(b) == 17 && b[0] == 6:
		return netip.AddrFrom16([16]byte(b[1:])), true
	}
	return netip.Addr{}, false
}

// number is an address as a number.
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

// split returns the first address of the number's chunk and the bit within it.
func (n number) split() (chunk number, bit int) {
	bit = int(n.lo % chunkBits)
	n.lo -= uint64(bit)
	return n, bit
}

// next returns the first address of the next chunk, or false after the last one. After the last of IPv4
// it returns a number that is above every IPv4 address.
func (n number) next() (number, bool) {
	n.lo += chunkBits
	if n.lo == 0 {
		n.hi++
		return n, n.hi != 0
	}
	return n, true
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

func ownerPrefix(owner record.Key) []byte {
	return append([]byte{ownerKind}, record.EncodeKey(owner.ContainerID, owner.IfName)...)
}

func cursorKey(set int) ([]byte, error) {
	if set < 0 || set > math.MaxInt32 {
		return nil, fmt.Errorf("range set %d: %w", set, record.ErrInvalid)
	}
	return binary.BigEndian.AppendUint32([]byte{cursorKind}, uint32(set)), nil
}
