package pool

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// normal returns the form in which pools store an address: IPv4 for a mapped one.
func normal(a netip.Addr) (netip.Addr, error) {
	if !a.IsValid() || a.Zone() != "" {
		return a, fmt.Errorf("address %q: %w: not an address, or one with a zone", a, kv.ErrInvalid)
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

// split returns the first address of an address's chunk and the bit within it.
func split(a netip.Addr) (chunk netip.Addr, bit int) {
	b := a.As16()
	bit = int(binary.BigEndian.Uint16(b[14:])) % chunkBits
	return withBit(a, 0), bit
}

// withBit returns the address with a bit in the chunk of a.
func withBit(a netip.Addr, bit int) netip.Addr {
	b := a.As16()
	low := binary.BigEndian.Uint16(b[14:])
	binary.BigEndian.PutUint16(b[14:], low-low%chunkBits+uint16(bit))
	if a.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func ownerPrefix(owner kv.Key) []byte {
	return append([]byte{ownerKind}, kv.EncodeKey(owner.ContainerID, owner.IfName)...)
}

func cursorKey(set int) ([]byte, error) {
	if set < 0 || set > math.MaxInt32 {
		return nil, fmt.Errorf("range set %d: %w", set, kv.ErrInvalid)
	}
	return binary.BigEndian.AppendUint32([]byte{cursorKind}, uint32(set)), nil
}
