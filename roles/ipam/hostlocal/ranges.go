package hostlocal

import (
	"cmp"
	"math/big"
	"net/netip"
	"slices"
)

// interval is every address from lo to hi, both included, of one family.
type interval struct{ lo, hi netip.Addr }

// contains tells whether an address of either family is in the interval.
func (i interval) contains(a netip.Addr) bool {
	return a.BitLen() == i.lo.BitLen() && i.lo.Compare(a) <= 0 && a.Compare(i.hi) <= 0
}

// overlaps tells whether two intervals share an address.
func (i interval) overlaps(j interval) bool {
	return i.lo.BitLen() == j.lo.BitLen() && i.lo.Compare(j.hi) <= 0 && j.lo.Compare(i.hi) <= 0
}

// size is the number of addresses; an IPv6 prefix can hold more than 2^64.
func (i interval) size() *big.Int {
	lo, hi := new(big.Int).SetBytes(i.lo.AsSlice()), new(big.Int).SetBytes(i.hi.AsSlice())
	n := hi.Sub(hi, lo)
	return n.Add(n, big.NewInt(1))
}

// String is "lo-hi".
func (i interval) String() string { return i.lo.String() + "-" + i.hi.String() }

// single is the interval of one address.
func single(a netip.Addr) interval { return interval{a, a} }

// whole is every address of a prefix.
func whole(p netip.Prefix) interval { return interval{p.Masked().Addr(), lastAddr(p)} }

// lastAddr is the address of a prefix whose host bits are all ones.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// subtract returns what of one interval is in none of the cuts: disjoint, not
// adjacent where a cut was, in ascending order. Cuts may overlap each other and
// be of the other family.
func subtract(from interval, cuts []interval) []interval {
	cuts = slices.Clone(cuts)
	slices.SortFunc(cuts, func(a, b interval) int {
		return cmp.Or(a.lo.Compare(b.lo), a.hi.Compare(b.hi))
	})
	var out []interval
	lo := from.lo
	for _, c := range cuts {
		if !c.overlaps(interval{lo, from.hi}) {
			continue
		}
		if lo.Less(c.lo) {
			out = append(out, interval{lo, c.lo.Prev()})
		}
		if c.hi.Compare(from.hi) >= 0 {
			return out
		}
		lo = c.hi.Next()
	}
	return append(out, interval{lo, from.hi})
}

// addrRange is a Range, parsed.
type addrRange struct {
	subnet netip.Prefix
	// bounds are the first and last address that a request may name.
	bounds interval
	// gateway is invalid where there is none.
	gateway netip.Addr
	// free is what may be handed out: bounds without gateways, excludes and
	// IPv4's network and broadcast address.
	free []interval
}

// rangeSet is one pool: every container gets one address of it.
type rangeSet []addrRange

// rangeOf returns the range whose bounds contain an address, or nil.
func (s rangeSet) rangeOf(a netip.Addr) *addrRange {
	for i := range s {
		if s[i].bounds.contains(a) {
			return &s[i]
		}
	}
	return nil
}

// allows tells whether an address may be handed out.
func (r *addrRange) allows(a netip.Addr) bool {
	return slices.ContainsFunc(r.free, func(i interval) bool { return i.contains(a) })
}

// size is the number of addresses that may be handed out.
func (s rangeSet) size() *big.Int {
	n := new(big.Int)
	for _, r := range s {
		for _, i := range r.free {
			n.Add(n, i.size())
		}
	}
	return n
}

// String names the set by its subnets.
func (s rangeSet) String() string {
	var out []byte
	for i, r := range s {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = r.subnet.AppendTo(out)
	}
	return string(out)
}

// candidate is an interval to look for an address in, with its range.
type candidate struct {
	interval
	in *addrRange
}

// order lists everything that may be handed out in the order in which it is
// looked at: round robin, that is what follows the address handed out last,
// then the ranges after it, then from the start again up to and with that
// address. An address that is in no range, as after a change of the
// configuration, means from the start.
func (s rangeSet) order(last netip.Addr) []candidate {
	var before, after []candidate
	passed := s.rangeOf(last) == nil
	if passed {
		last = netip.Addr{}
	}
	for i := range s {
		r := &s[i]
		here := r.bounds.contains(last)
		for _, f := range r.free {
			switch {
			case !here && passed, here && last.Less(f.lo):
				after = append(after, candidate{f, r})
			case !here, f.hi.Compare(last) <= 0:
				before = append(before, candidate{f, r})
			default:
				before = append(before, candidate{interval{f.lo, last}, r})
				after = append(after, candidate{interval{last.Next(), f.hi}, r})
			}
		}
		passed = passed || here
	}
	return append(after, before...)
}
