package hostlocal

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func span(lo, hi string) interval { return interval{ip(lo), ip(hi)} }

func texts(in []interval) []string {
	var out []string
	for _, i := range in {
		out = append(out, i.String())
	}
	return out
}

func TestSubtract(t *testing.T) {
	from := span("10.0.0.10", "10.0.0.20")
	cases := map[string]struct {
		cuts []interval
		want []string
	}{
		"nothing":             {nil, []string{"10.0.0.10-10.0.0.20"}},
		"all":                 {[]interval{from}, nil},
		"more than all":       {[]interval{span("10.0.0.0", "10.0.0.255")}, nil},
		"the first":           {[]interval{single(ip("10.0.0.10"))}, []string{"10.0.0.11-10.0.0.20"}},
		"the last":            {[]interval{single(ip("10.0.0.20"))}, []string{"10.0.0.10-10.0.0.19"}},
		"the middle":          {[]interval{single(ip("10.0.0.15"))}, []string{"10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.20"}},
		"before and after":    {[]interval{span("10.0.0.0", "10.0.0.9"), span("10.0.0.21", "10.0.0.30")}, []string{"10.0.0.10-10.0.0.20"}},
		"over both ends":      {[]interval{span("10.0.0.0", "10.0.0.10"), span("10.0.0.20", "10.0.0.30")}, []string{"10.0.0.11-10.0.0.19"}},
		"twice":               {[]interval{single(ip("10.0.0.15")), single(ip("10.0.0.15"))}, []string{"10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.20"}},
		"nested":              {[]interval{span("10.0.0.12", "10.0.0.18"), span("10.0.0.13", "10.0.0.14")}, []string{"10.0.0.10-10.0.0.11", "10.0.0.19-10.0.0.20"}},
		"adjacent, unordered": {[]interval{span("10.0.0.14", "10.0.0.16"), span("10.0.0.11", "10.0.0.13")}, []string{"10.0.0.10-10.0.0.10", "10.0.0.17-10.0.0.20"}},
		"the other family":    {[]interval{span("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}, []string{"10.0.0.10-10.0.0.20"}},
		"the zero interval":   {[]interval{{}}, []string{"10.0.0.10-10.0.0.20"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, texts(subtract(from, c.cuts))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSubtractAtTheEndsOfTheAddressSpace(t *testing.T) {
	for _, c := range []struct{ lo, hi string }{
		{"0.0.0.0", "255.255.255.255"},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		all := span(c.lo, c.hi)
		if got := subtract(all, []interval{all}); got != nil {
			t.Errorf("all without all: %v", got)
		}
		got := texts(subtract(all, []interval{single(all.lo), single(all.hi)}))
		want := []string{interval{all.lo.Next(), all.hi.Prev()}.String()}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// small is an address of a space of 64.
func small(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func randomInterval(r *rand.Rand) interval {
	a, b := r.IntN(64), r.IntN(64)
	return interval{small(min(a, b)), small(max(a, b))}
}

func TestSubtractAgreesWithCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		from := randomInterval(r)
		var cuts []interval
		for range r.IntN(6) {
			cuts = append(cuts, randomInterval(r))
		}
		got := subtract(from, cuts)
		for n := range 64 {
			a := small(n)
			has := func(i interval) bool { return i.contains(a) }
			want := from.contains(a) && !slices.ContainsFunc(cuts, has)
			if slices.ContainsFunc(got, has) != want {
				t.Fatalf("%v without %v is %v: wrong about %s", from, cuts, got, a)
			}
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].hi.Less(got[i].lo) {
				t.Fatalf("%v without %v is %v: not disjoint or not ascending", from, cuts, got)
			}
		}
		for _, i := range got {
			if i.hi.Less(i.lo) {
				t.Fatalf("%v without %v holds an empty interval %v", from, cuts, i)
			}
		}
	}
}

func TestHosts(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.0.0.0/24":     "10.0.0.1-10.0.0.254",
		"10.0.0.0/30":     "10.0.0.1-10.0.0.2",
		"10.0.0.0/31":     "10.0.0.0-10.0.0.1",
		"10.0.0.7/32":     "10.0.0.7-10.0.0.7",
		"0.0.0.0/0":       "0.0.0.1-255.255.255.254",
		"2001:db8::/64":   "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff",
		"2001:db8::/126":  "2001:db8::1-2001:db8::3",
		"2001:db8::2/127": "2001:db8::2-2001:db8::3",
		"2001:db8::5/128": "2001:db8::5-2001:db8::5",
		"::/0":            "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := hostsOf(netip.MustParsePrefix(subnet)).String(); got != want {
			t.Errorf("%s: got %s, want %s", subnet, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, i := range map[string]interval{
		"1":                    span("10.0.0.1", "10.0.0.1"),
		"4294967296":           span("0.0.0.0", "255.255.255.255"),
		"18446744073709551616": span("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"),
	} {
		if got := i.size().String(); got != text {
			t.Errorf("%s: got %s, want %s", i, got, text)
		}
	}
}

// TestOrderAgreesWithWalking: walking address by address from the one after the
// last, through the ranges and round, visits what order lists.
func TestOrderAgreesWithWalking(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		s := randomSet(r)
		last := small(r.IntN(64))
		var want []netip.Addr
		ring := allOf(s)
		start := 0
		if s.rangeOf(last) != nil {
			start = slices.IndexFunc(ring, func(a netip.Addr) bool { return a == last }) + 1
		}
		for n := range ring {
			a := ring[(start+n)%len(ring)]
			if s.rangeOf(a).allows(a) {
				want = append(want, a)
			}
		}
		var got []netip.Addr
		for _, c := range s.order(last) {
			for a := c.lo; a.Compare(c.hi) <= 0; a = a.Next() {
				got = append(got, a)
				if !c.in.bounds.contains(a) {
					t.Fatalf("%s is not of the range named with it", a)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("set %v after %s:\n got %v\nwant %v", s, last, got, want)
		}
	}
}

// randomSet has ranges that do not overlap, in any order, with holes.
func randomSet(r *rand.Rand) rangeSet {
	var s rangeSet
	for range 1 + r.IntN(3) {
		b := randomInterval(r)
		if slices.ContainsFunc(s, func(o addrRange) bool { return o.bounds.overlaps(b) }) {
			continue
		}
		var cuts []interval
		for range r.IntN(4) {
			i := randomInterval(r)
			if r.IntN(2) == 0 {
				i = single(i.lo)
			}
			cuts = append(cuts, i)
		}
		s = append(s, addrRange{subnet: netip.PrefixFrom(small(0), 26), bounds: b, free: subtract(b, cuts)})
	}
	return s
}

// allOf lists the addresses of all ranges, range by range.
func allOf(s rangeSet) []netip.Addr {
	var out []netip.Addr
	for _, r := range s {
		for a := r.bounds.lo; a.Compare(r.bounds.hi) <= 0; a = a.Next() {
			out = append(out, a)
		}
	}
	return out
}
