package leasing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func span(lo, hi string) Interval { return Interval{ip(lo), ip(hi)} }

func texts(in []Interval) []string {
	var out []string
	for _, i := range in {
		out = append(out, i.String())
	}
	return out
}

func TestSubtract(t *testing.T) {
	from := span("10.0.0.10", "10.0.0.20")
	cases := map[string]struct {
		cuts []Interval
		want []string
	}{
		"nothing":             {nil, []string{"10.0.0.10-10.0.0.20"}},
		"all":                 {[]Interval{from}, nil},
		"more than all":       {[]Interval{span("10.0.0.0", "10.0.0.255")}, nil},
		"the first":           {[]Interval{Single(ip("10.0.0.10"))}, []string{"10.0.0.11-10.0.0.20"}},
		"the last":            {[]Interval{Single(ip("10.0.0.20"))}, []string{"10.0.0.10-10.0.0.19"}},
		"the middle":          {[]Interval{Single(ip("10.0.0.15"))}, []string{"10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.20"}},
		"before and after":    {[]Interval{span("10.0.0.0", "10.0.0.9"), span("10.0.0.21", "10.0.0.30")}, []string{"10.0.0.10-10.0.0.20"}},
		"over both ends":      {[]Interval{span("10.0.0.0", "10.0.0.10"), span("10.0.0.20", "10.0.0.30")}, []string{"10.0.0.11-10.0.0.19"}},
		"twice":               {[]Interval{Single(ip("10.0.0.15")), Single(ip("10.0.0.15"))}, []string{"10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.20"}},
		"nested":              {[]Interval{span("10.0.0.12", "10.0.0.18"), span("10.0.0.13", "10.0.0.14")}, []string{"10.0.0.10-10.0.0.11", "10.0.0.19-10.0.0.20"}},
		"adjacent, unordered": {[]Interval{span("10.0.0.14", "10.0.0.16"), span("10.0.0.11", "10.0.0.13")}, []string{"10.0.0.10-10.0.0.10", "10.0.0.17-10.0.0.20"}},
		"the other family":    {[]Interval{span("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}, []string{"10.0.0.10-10.0.0.20"}},
		"the zero interval":   {[]Interval{{}}, []string{"10.0.0.10-10.0.0.20"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, texts(Subtract(from, c.cuts))); diff != "" {
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
		if got := Subtract(all, []Interval{all}); got != nil {
			t.Errorf("all without all: %v", got)
		}
		got := texts(Subtract(all, []Interval{Single(all.Lo), Single(all.Hi)}))
		want := []string{Interval{all.Lo.Next(), all.Hi.Prev()}.String()}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// small returns an address of a space of 64.
func small(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func randomInterval(r *rand.Rand) Interval {
	a, b := r.IntN(64), r.IntN(64)
	return Interval{small(min(a, b)), small(max(a, b))}
}

func TestSubtractAgreesWithCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		from := randomInterval(r)
		var cuts []Interval
		for range r.IntN(6) {
			cuts = append(cuts, randomInterval(r))
		}
		got := Subtract(from, cuts)
		for n := range 64 {
			a := small(n)
			has := func(i Interval) bool { return i.Contains(a) }
			want := from.Contains(a) && !slices.ContainsFunc(cuts, has)
			if slices.ContainsFunc(got, has) != want {
				t.Fatalf("%v without %v is %v: wrong about %s", from, cuts, got, a)
			}
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].Hi.Less(got[i].Lo) {
				t.Fatalf("%v without %v is %v: not disjoint or not ascending", from, cuts, got)
			}
		}
		for _, i := range got {
			if i.Hi.Less(i.Lo) {
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
		if got := Hosts(netip.MustParsePrefix(subnet)).String(); got != want {
			t.Errorf("%s: got %s, want %s", subnet, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, i := range map[string]Interval{
		"1":                    span("10.0.0.1", "10.0.0.1"),
		"4294967296":           span("0.0.0.0", "255.255.255.255"),
		"18446744073709551616": span("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"),
	} {
		if got := i.size().String(); got != text {
			t.Errorf("%s: got %s, want %s", i, got, text)
		}
	}
}

// TestOrderAgreesWithWalking: order lists the addresses that a walk through the
// ranges visits, from the one after the last and around.
func TestOrderAgreesWithWalking(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		s := randomSet(r)
		last := small(r.IntN(64))
		var want []netip.Addr
		ring := allOf(s)
		start := 0
		if s.RangeOf(last) != nil {
			start = slices.IndexFunc(ring, func(a netip.Addr) bool { return a == last }) + 1
		}
		for n := range ring {
			a := ring[(start+n)%len(ring)]
			if s.RangeOf(a).Allows(a) {
				want = append(want, a)
			}
		}
		var got []netip.Addr
		for _, c := range s.order(last) {
			for a := c.Lo; a.Compare(c.Hi) <= 0; a = a.Next() {
				got = append(got, a)
				if !c.in.Bounds.Contains(a) {
					t.Fatalf("%s is not of the range named with it", a)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("set %v after %s:\n got %v\nwant %v", s, last, got, want)
		}
	}
}

// randomSet returns ranges that do not overlap, in any order, with holes.
func randomSet(r *rand.Rand) Set {
	var s Set
	for range 1 + r.IntN(3) {
		b := randomInterval(r)
		if slices.ContainsFunc(s, func(o Range) bool { return o.Bounds.Overlaps(b) }) {
			continue
		}
		var cuts []Interval
		for range r.IntN(4) {
			i := randomInterval(r)
			if r.IntN(2) == 0 {
				i = Single(i.Lo)
			}
			cuts = append(cuts, i)
		}
		s = append(s, Range{Subnet: netip.PrefixFrom(small(0), 26), Bounds: b, Free: Subtract(b, cuts)})
	}
	return s
}

// allOf lists the addresses of all ranges, range by range.
func allOf(s Set) []netip.Addr {
	var out []netip.Addr
	for _, r := range s {
		for a := r.Bounds.Lo; a.Compare(r.Bounds.Hi) <= 0; a = a.Next() {
			out = append(out, a)
		}
	}
	return out
}

func TestMerge(t *testing.T) {
	for name, c := range map[string]struct {
		in   []Interval
		want []string
	}{
		"none":                   {nil, nil},
		"neighbours, unordered":  {[]Interval{Single(ip("10.0.0.12")), Single(ip("10.0.0.10")), Single(ip("10.0.0.11"))}, []string{"10.0.0.10-10.0.0.12"}},
		"apart":                  {[]Interval{Single(ip("10.0.0.12")), Single(ip("10.0.0.10"))}, []string{"10.0.0.10-10.0.0.10", "10.0.0.12-10.0.0.12"}},
		"nested and overlapping": {[]Interval{span("10.0.0.0", "10.0.0.9"), span("10.0.0.2", "10.0.0.3"), span("10.0.0.9", "10.0.0.11")}, []string{"10.0.0.0-10.0.0.11"}},
		"to the last":            {[]Interval{span("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), Single(ip("::1"))}, []string{"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, texts(Merge(c.in))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCountAndSize: Count and Size agree if the number fits.
func TestCountAndSize(t *testing.T) {
	for _, c := range []struct {
		free []Interval
		want string
	}{
		{nil, "0"},
		{[]Interval{Single(ip("10.0.0.1")), span("10.1.0.0", "10.1.255.255")}, "65537"},
		{[]Interval{span("2001:db8::", "2001:db8::ffff")}, "65536"},
	} {
		r := Range{Free: c.free}
		if size := (Set{r}).Size().String(); fmt.Sprint(r.Count()) != c.want || size != c.want {
			t.Errorf("%v: count %d, size %s, want %s", c.free, r.Count(), size, c.want)
		}
	}
	r := Range{Free: []Interval{span("2001:db8::", "2001:db8:0:1::")}}
	if r.Count() != math.MaxUint64 {
		t.Errorf("count %d", r.Count())
	}
}

// TestRangeOf: of ranges with the same bounds, RangeOf returns the one that has the
// address.
func TestRangeOf(t *testing.T) {
	bounds := span("10.0.0.0", "10.0.0.255")
	s := Set{
		{Bounds: bounds, Free: []Interval{Single(ip("10.0.0.4"))}, NIC: "a"},
		{Bounds: bounds, Free: []Interval{Single(ip("10.0.0.5")), span("10.0.0.8", "10.0.0.9")}, NIC: "b"},
	}
	for text, want := range map[string]string{"10.0.0.4": "a", "10.0.0.5": "b", "10.0.0.9": "b", "10.0.0.7": "a"} {
		if r := s.RangeOf(ip(text)); r == nil || r.NIC != want {
			t.Errorf("%s: %+v", text, r)
		}
	}
	if s.RangeOf(ip("10.0.1.0")) != nil || s[1].Allows(ip("10.0.0.7")) || s[1].Allows(ip("::1")) {
		t.Error("an address of neither")
	}
}

// TestConflicts finds overlaps of many intervals without a comparison of all pairs.
func TestConflicts(t *testing.T) {
	const n = 4096
	var intervals []Interval
	for i := range n {
		intervals = append(intervals, Whole(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte((n - i) / 256), byte(n - i), 0}), 24)))
	}
	reads := 0
	at := func(i int) Interval { reads++; return intervals[i] }
	if pairs := Conflicts(n, at); pairs != nil {
		t.Errorf("%v", pairs)
	}
	if most := 40 * n; reads > most {
		t.Errorf("%d intervals were read %d times, want at most %d", n, reads, most)
	}
	prefix := func(s string) Interval { return Whole(netip.MustParsePrefix(s)) }
	intervals = []Interval{prefix("10.0.1.0/24"), prefix("fd00::/64"), prefix("10.0.0.0/16"), prefix("10.0.3.0/24"), prefix("10.1.0.0/16"), prefix("fd00::/64"), prefix("::/127")}
	if diff := cmp.Diff([][2]int{{2, 0}, {3, 2}, {5, 1}}, Conflicts(len(intervals), at)); diff != "" {
		t.Error(diff)
	}
}
