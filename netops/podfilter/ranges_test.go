package podfilter

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestRanges compares sets of ranges of ports with each port.
func TestRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	port := func() uint16 { // many at the ends, and near others
		return []uint16{0, 1, 5, 6, 7, 255, 256, 257, 65534, 65535, uint16(random.IntN(12)), uint16(random.IntN(65536))}[random.IntN(12)]
	}
	ranges := func(n int) (all []Range) {
		for range n {
			a, b := port(), port()
			all = append(all, PortRange(min(a, b), max(a, b)))
		}
		return all
	}
	has := func(all []Range, key string) bool {
		return slices.ContainsFunc(all, func(r Range) bool { return r.First <= key && key <= r.Last })
	}
	for range 300 {
		all, holes := ranges(1+random.IntN(4)), ranges(random.IntN(4))
		var left []Range
		for _, r := range all {
			left = append(left, r.Without(holes)...)
		}
		s := NewRanges(func(string) string { return "p" }, Ports, false, left)
		for port := range 1 << 16 {
			key := PortRange(uint16(port), 0).First
			if want := has(all, key) && !has(holes, key); s.Contains(key) != want {
				t.Fatalf("port %d is in %q without %q: want %v, members %q", port, all, holes, want, slices.Sorted(maps.Keys(s.members)))
			}
		}
		if again := NewRanges(func(contents string) string { return contents }, Ports, false, Merged(left)); again.Name != NewRanges(func(contents string) string { return contents }, Ports, false, left).Name {
			t.Fatalf("the name of %q depends on their form", left)
		}
	}
}

// TestNetworks: a network is the range of its addresses, and a range that is no network is none.
func TestNetworks(t *testing.T) {
	for _, text := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.128.0.0/9", "192.0.2.7/32", "::/0", "2001:db8::/33", "fd00::1/128"} {
		if p := netip.MustParsePrefix(text); NetworkRange(p).Network() != p {
			t.Errorf("%s: %s", p, NetworkRange(p).Network())
		}
	}
	all := NetworkRange(netip.MustParsePrefix("10.0.0.0/8")).Without([]Range{NetworkRange(netip.MustParsePrefix("10.0.0.0/30"))})
	if len(all) != 1 || all[0].Network().IsValid() {
		t.Errorf("%v", all)
	}
	s := NewRanges(func(string) string { return "n" }, Networks, false, all)
	for text, want := range map[string]bool{"10.0.0.3": false, "10.0.0.4": true, "10.255.255.255": true, "11.0.0.0": false, "::": false} {
		if s.Contains(Key(netip.MustParseAddr(text), 0)) != want {
			t.Errorf("%s: want %v", text, want)
		}
	}
}
