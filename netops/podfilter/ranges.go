package podfilter

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
)

// Range is a range of keys, as Key returns them, from First to Last.
type Range struct{ First, Last string }

// PortRange returns a range of ports.
func PortRange(first, last uint16) Range {
	text := func(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }
	return Range{text(first), text(last)}
}

// Ports returns what PortRange got.
func (r Range) Ports() (first, last uint16) {
	return binary.BigEndian.Uint16([]byte(r.First)), binary.BigEndian.Uint16([]byte(r.Last))
}

// NetworkRange returns the addresses of a network.
func NetworkRange(p netip.Prefix) Range {
	first := p.Masked().Addr().AsSlice()
	last := slices.Clone(first)
	for i := range last {
		last[i] |= byte(0xff >> min(8, max(0, p.Bits()-8*i)))
	}
	return Range{string(first), string(last)}
}

// Network returns the network that has exactly the range's addresses, or the zero value.
func (r Range) Network() netip.Prefix {
	first, _ := netip.AddrFromSlice([]byte(r.First))
	for bits := range first.BitLen() + 1 {
		if p := netip.PrefixFrom(first, bits); NetworkRange(p) == r {
			return p
		}
	}
	return netip.Prefix{}
}

// Without returns what is left of the range without others.
func (r Range) Without(holes []Range) (left []Range) {
	for _, h := range Merged(holes) {
		if h.Last < r.First || r.Last < h.First {
			continue
		}
		if r.First < h.First {
			left = append(left, Range{r.First, step(h.First, -1)})
		}
		if r.Last <= h.Last {
			return left
		}
		r.First = step(h.Last, 1)
	}
	return append(left, r)
}

// Merged returns ranges in their order, joined where one ends at or behind the begin of the next.
func Merged(all []Range) (out []Range) {
	for _, r := range sorting.Sorted(all, func(a, b Range) int {
		return cmp.Or(strings.Compare(a.First, b.First), strings.Compare(a.Last, b.Last))
	}) {
		if n := len(out); n > 0 && (r.First <= out[n-1].Last || r.First == step(out[n-1].Last, 1)) {
			out[n-1].Last = max(out[n-1].Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// step returns the next key, or with -1 the one before. The next of the last key is the first.
func step(key string, by int) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i] += byte(by)
		if by > 0 && b[i] != 0 || by < 0 && b[i] != 0xff { // no carry
			break
		}
	}
	return string(b)
}

// NewRanges returns a set of ranges, whose name follows from them. It does not change.
func NewRanges(nameOf func(contents string) string, kind Kind, v6 bool, all []Range) *Set {
	var text strings.Builder
	all = Merged(all)
	for _, r := range all {
		text.WriteString(r.First + r.Last)
	}
	s := NewSet(nameOf(text.String()), kind, v6)
	for _, r := range all {
		s.Add(r.First + beginOfRange)
		if behind := step(r.Last, 1); behind > r.Last { // else no key is behind it
			s.Add(behind + endOfRange)
		}
	}
	return s
}

// A member of a set of ranges is the first key of a range, or the key behind it, and one of these. The kernel has both as elements.
const (
	beginOfRange = "\x00"
	endOfRange   = "\x01"
)

// Contains reports whether the set matches a key.
func (s *Set) Contains(key string) bool {
	if !s.hasRanges() {
		return s.Has(key)
	}
	last := ""
	for m := range s.members {
		if len(m) != len(key)+1 { // of the other family
			return false
		}
		if m[:len(key)] <= key && m > last {
			last = m
		}
	}
	return strings.HasSuffix(last, beginOfRange)
}
