package leasing

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
)

// Interval is all addresses from Lo to Hi, both included, of one family.
type Interval struct{ Lo, Hi netip.Addr }

// Contains reports whether an address, of either family, is in the interval.
func (i Interval) Contains(a netip.Addr) bool {
	return a.BitLen() == i.Lo.BitLen() && i.Lo.Compare(a) <= 0 && a.Compare(i.Hi) <= 0
}

// Overlaps reports whether two intervals share an address.
func (i Interval) Overlaps(j Interval) bool {
	return i.Lo.BitLen() == j.Lo.BitLen() && i.Lo.Compare(j.Hi) <= 0 && j.Lo.Compare(i.Hi) <= 0
}

// size returns the number of addresses; an IPv6 prefix can have more than 2^64.
func (i Interval) size() *big.Int {
	lo, hi := new(big.Int).SetBytes(i.Lo.AsSlice()), new(big.Int).SetBytes(i.Hi.AsSlice())
	n := hi.Sub(hi, lo)
	return n.Add(n, big.NewInt(1))
}

// about is size without big numbers, for metrics. It is exact up to 2^53.
func (i Interval) about() float64 {
	lo, hi := i.Lo.As16(), i.Hi.As16()
	part := func(at int) float64 {
		return float64(binary.BigEndian.Uint64(hi[at:])) - float64(binary.BigEndian.Uint64(lo[at:]))
	}
	return math.Ldexp(part(0), 64) + part(8) + 1
}

// String returns "lo-hi".
func (i Interval) String() string { return i.Lo.String() + "-" + i.Hi.String() }

// ParseExclude parses addresses and CIDRs, whose host bits have no effect. The result has
// an interval for each text, the zero interval for an invalid one.
func ParseExclude(f *roles.Faults, path string, texts []string) []Interval {
	out := make([]Interval, len(texts))
	for i, t := range texts {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !strings.Contains(t, "/") {
			a, err := roles.ParseAddr(t)
			if f.Check(at, err) {
				out[i] = Single(a)
			}
			continue
		}
		p, err := netip.ParsePrefix(t)
		if err != nil || p.Addr().Is4In6() {
			f.Addf(at, "%q is neither an IP address nor a CIDR", t)
			continue
		}
		out[i] = Whole(p)
	}
	return out
}

// Single returns the interval of one address.
func Single(a netip.Addr) Interval { return Interval{a, a} }

// Whole returns all addresses of a prefix.
func Whole(p netip.Prefix) Interval { return Interval{p.Masked().Addr(), lastAddr(p)} }

// lastAddr returns the address of a prefix whose host bits are all ones.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Hosts returns the addresses of a subnet that hosts can have. An IPv4 prefix of up
// to 30 bits loses the network and the broadcast address; a /31 keeps both (RFC
// 3021). IPv6 loses the subnet-router anycast address (RFC 4291, section 2.6.1),
// except for /127 (RFC 6164) and /128; its last address is usable.
func Hosts(p netip.Prefix) Interval {
	i := Whole(p)
	hostBits := p.Addr().BitLen() - p.Bits()
	if hostBits < 2 {
		return i
	}
	i.Lo = i.Lo.Next()
	if p.Addr().Is4() {
		i.Hi = i.Hi.Prev()
	}
	return i
}

// Subtract returns the addresses of an interval that are in none of the cuts, as
// disjoint intervals in ascending order. Cuts may overlap each other and be of the
// other family.
func Subtract(from Interval, cuts []Interval) []Interval {
	cuts = slices.Clone(cuts)
	sorting.Func(cuts, func(a, b Interval) int {
		return cmp.Or(a.Lo.Compare(b.Lo), a.Hi.Compare(b.Hi))
	})
	var out []Interval
	lo := from.Lo
	for _, c := range cuts {
		if !c.Overlaps(Interval{lo, from.Hi}) {
			continue
		}
		if lo.Less(c.Lo) {
			out = append(out, Interval{lo, c.Lo.Prev()})
		}
		if c.Hi.Compare(from.Hi) >= 0 {
			return out
		}
		lo = c.Hi.Next()
	}
	return append(out, Interval{lo, from.Hi})
}

// Within returns the parts of intervals that are in another one.
func Within(of []Interval, in Interval) (out []Interval) {
	for _, i := range of {
		if !i.Overlaps(in) {
			continue
		}
		if i.Lo.Less(in.Lo) {
			i.Lo = in.Lo
		}
		if in.Hi.Less(i.Hi) {
			i.Hi = in.Hi
		}
		out = append(out, i)
	}
	return out
}

// Overlapping returns the intervals of a sorted list of disjoint ones, as Merge returns it,
// that overlap another one. It does not read the others.
func Overlapping(of []Interval, in Interval) []Interval {
	from := sort.Search(len(of), func(i int) bool { return in.Lo.Compare(of[i].Hi) <= 0 })
	n := sort.Search(len(of)-from, func(i int) bool { return in.Hi.Less(of[from+i].Lo) })
	return of[from : from+n]
}

// Conflicts returns pairs of overlapping intervals among n, by their indexes, the larger
// one first, in ascending order. Every interval that overlaps another is in a pair, and
// there are fewer pairs than intervals.
func Conflicts(n int, at func(int) Interval) (pairs [][2]int) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	sorting.Func(order, func(i, j int) int { return cmp.Or(at(i).Lo.Compare(at(j).Lo), cmp.Compare(i, j)) })
	widest := -1
	for _, i := range order {
		if widest >= 0 && at(widest).Overlaps(at(i)) {
			pairs = append(pairs, [2]int{max(widest, i), min(widest, i)})
		}
		if widest < 0 || at(widest).Hi.Less(at(i).Hi) {
			widest = i
		}
	}
	sorting.Func(pairs, func(a, b [2]int) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return pairs
}

// Merge returns the same addresses as disjoint intervals that are not adjacent, in
// ascending order. It overwrites its argument.
func Merge(in []Interval) []Interval {
	sorting.Func(in, func(a, b Interval) int { return cmp.Or(a.Lo.Compare(b.Lo), a.Hi.Compare(b.Hi)) })
	out := in[:0]
	for _, i := range in {
		if last := len(out) - 1; last >= 0 && (out[last].Contains(i.Lo) || out[last].Hi.Next() == i.Lo) {
			if out[last].Hi.Less(i.Hi) {
				out[last].Hi = i.Hi
			}
			continue
		}
		out = append(out, i)
	}
	return out
}

// Range is a part of a subnet from which addresses are given out.
type Range struct {
	Subnet netip.Prefix
	// Bounds has the first and last address that may be requested.
	Bounds Interval
	// Gateway is invalid when there is none.
	Gateway netip.Addr
	// Free has the addresses that may be given out, as disjoint intervals in
	// ascending order.
	Free []Interval
	// Source, NIC and Quiet are stored in leases; see store.Lease.
	Source, NIC string
	Quiet       bool
}

// Set is one pool. Every container gets one address of it.
type Set []Range

// RangeOf returns the range whose bounds contain an address, or nil. If there are
// several, it returns one that may give the address out.
func (s Set) RangeOf(a netip.Addr) *Range {
	var found *Range
	for i := range s {
		if !s[i].Bounds.Contains(a) {
			continue
		}
		if found == nil {
			found = &s[i]
		} else if !found.Allows(a) && s[i].Allows(a) {
			return &s[i]
		}
	}
	return found
}

// Allows reports whether an address may be given out.
func (r *Range) Allows(a netip.Addr) bool {
	i := sort.Search(len(r.Free), func(i int) bool { return a.Compare(r.Free[i].Hi) <= 0 })
	return i < len(r.Free) && r.Free[i].Contains(a)
}

// Count returns the number of addresses that may be given out, limited to the largest
// uint64.
func (r *Range) Count() uint64 {
	var n uint64
	for _, i := range r.Free {
		lo, hi := i.Lo.As16(), i.Hi.As16()
		l, h := binary.BigEndian.Uint64(lo[8:]), binary.BigEndian.Uint64(hi[8:])
		if !bytes.Equal(lo[:8], hi[:8]) || h-l >= math.MaxUint64-n {
			return math.MaxUint64
		}
		n += h - l + 1
	}
	return n
}

// Size returns the number of addresses that may be given out.
func (s Set) Size() *big.Int {
	n := new(big.Int)
	for _, r := range s {
		for _, i := range r.Free {
			n.Add(n, i.size())
		}
	}
	return n
}

// String returns the set's subnets.
func (s Set) String() string {
	var out []byte
	for i, r := range s {
		if i > 0 && s[i-1].Subnet == r.Subnet {
			continue // blocks of one range
		}
		if i > 0 {
			out = append(out, ", "...)
		}
		out = r.Subnet.AppendTo(out)
	}
	return string(out)
}

// candidate is an interval to search for an address, with its range.
type candidate struct {
	Interval
	in *Range
}

// order returns the intervals of all addresses that may be given out, in the order of
// the search: after the address given out last, then the following ranges, then from
// the start up to and with that address. If that address is in no range, as after a
// change of the configuration, the search begins at the start.
func (s Set) order(last netip.Addr) []candidate {
	var before, after []candidate
	passed := s.RangeOf(last) == nil
	if passed {
		last = netip.Addr{}
	}
	for i := range s {
		r := &s[i]
		here := r.Bounds.Contains(last)
		for _, f := range r.Free {
			switch {
			case !here && passed, here && last.Less(f.Lo):
				after = append(after, candidate{f, r})
			case !here, f.Hi.Compare(last) <= 0:
				before = append(before, candidate{f, r})
			default:
				before = append(before, candidate{Interval{f.Lo, last}, r})
				after = append(after, candidate{Interval{last.Next(), f.Hi}, r})
			}
		}
		passed = passed || here
	}
	return append(after, before...)
}
