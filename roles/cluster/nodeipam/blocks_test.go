package nodeipam

import (
	"net/netip"
	"slices"
	"testing"
)

func newTestBlocks(tb testing.TB, network string, length int) *blocks {
	tb.Helper()
	b, err := newBlocks(netip.MustParsePrefix(network), length)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Blocks are given in order, also after others were occupied and released.
func TestBlocks(t *testing.T) {
	for _, c := range []struct {
		name, network string
		length        int
		occupied      []string
		want          []string // until none is free
	}{
		{name: "in order", network: "10.244.0.0/22", length: 24, want: []string{"10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"}},
		{name: "one block", network: "10.244.7.0/24", length: 24, want: []string{"10.244.7.0/24"}},
		{name: "a node's", network: "10.244.0.0/22", length: 24, occupied: []string{"10.244.1.0/24"}, want: []string{"10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"}},
		{name: "a part of a block", network: "10.244.0.0/23", length: 24, occupied: []string{"10.244.0.128/25"}, want: []string{"10.244.1.0/24"}},
		{name: "several blocks", network: "10.244.0.0/21", length: 24, occupied: []string{"10.244.4.0/22"}, want: []string{"10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"}},
		{name: "all blocks", network: "10.96.0.0/14", length: 16, occupied: []string{"10.0.0.0/8"}},
		{name: "outside", network: "10.244.0.0/23", length: 24, occupied: []string{"10.245.0.0/16", "fd00::/64"}, want: []string{"10.244.0.0/24", "10.244.1.0/24"}},
		{name: "IPv6", network: "fd00:10:244::/62", length: 64, occupied: []string{"fd00:10:244:1::/64"}, want: []string{"fd00:10:244::/64", "fd00:10:244:2::/64", "fd00:10:244:3::/64"}},
		{name: "across the middle", network: "fd00::ffff:0:0:0:0/63", length: 65, want: []string{"fd00:0:0:fffe::/65", "fd00:0:0:fffe:8000::/65", "fd00:0:0:ffff::/65", "fd00:0:0:ffff:8000::/65"}},
		{name: "addresses", network: "10.244.0.252/30", length: 32, want: []string{"10.244.0.252/32", "10.244.0.253/32", "10.244.0.254/32", "10.244.0.255/32"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestBlocks(t, netip.MustParsePrefix(c.network).Masked().String(), c.length)
			for _, p := range c.occupied {
				b.occupy(netip.MustParsePrefix(p))
			}
			var got []string
			for p, ok := b.take(); ok; p, ok = b.take() {
				got = append(got, p.String())
			}
			if !slices.Equal(got, c.want) || b.Used != b.Max || b.Usage != 1 {
				t.Errorf("got %v, want %v; %+v", got, c.want, b.metrics)
			}
		})
	}
}

// A released block is given last, and only after its last holder has released it.
func TestBlocksReleased(t *testing.T) {
	b := newTestBlocks(t, "10.244.0.0/22", 24)
	first, _ := b.take()
	b.occupy(first) // by another node
	b.release(first)
	for range 3 {
		b.take()
	}
	if p, ok := b.take(); ok {
		t.Errorf("%s has a holder", p)
	}
	b.release(first)
	if p, ok := b.take(); !ok || p != first {
		t.Errorf("got %s %v, want %s", p, ok, first)
	}
	want := metrics{ClusterCIDR: b.network, Allocations: 5, Releases: 1, Max: 4, Usage: 1, Used: 4, Tries: histogram{Buckets: [6]int{5, 5, 5, 5, 5, 5}}}
	if b.metrics != want {
		t.Errorf("metrics %+v, want %+v", b.metrics, want)
	}
}

// The histogram counts as Prometheus does.
func TestHistogram(t *testing.T) {
	var h histogram
	for _, v := range []int{0, 1, 2, 25, 26, 4000} {
		h.observe(v)
	}
	if want := (histogram{Buckets: [6]int{2, 3, 4, 5, 5, 6}, Sum: 4054}); h != want {
		t.Errorf("got %+v, want %+v", h, want)
	}
}

func TestBlocksRefused(t *testing.T) {
	for network, length := range map[string]int{"10.0.0.0/16": 15, "10.0.0.0/24": 33, "fd00::/32": 57, "fd00::/127": 129} {
		if _, err := newBlocks(netip.MustParsePrefix(network), length); err == nil {
			t.Errorf("%s has blocks of /%d", network, length)
		}
	}
	if b := newTestBlocks(t, "10.0.0.0/8", 32); b.Max != maxBlocks {
		t.Errorf("%d blocks", b.Max)
	}
}

// FuzzBlocks compares with a list of the held prefixes.
func FuzzBlocks(f *testing.F) {
	f.Add(uint8(4), []byte{0, 0, 0, 1, 7, 2, 0, 0, 3, 130, 2, 1})
	f.Add(uint8(7), []byte{3, 0, 0, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, size uint8, ops []byte) {
		depth := int(size % 8)
		network := netip.MustParsePrefix("10.244.0.0/16")
		b := newTestBlocks(t, "10.244.0.0/16", 16+depth)
		var held []netip.Prefix
		next := 0
		used := func(i int) bool { return slices.ContainsFunc(held, b.block(i).Overlaps) }
		for len(ops) > 2 {
			op, x, y := ops[0]%4, ops[1], ops[2]
			ops = ops[1:]
			switch {
			case op == 0:
				want := -1
				for i := range b.Max {
					if at := (next + i) % b.Max; !used(at) {
						want = at
						break
					}
				}
				p, ok := b.take()
				if ok != (want >= 0) || ok && p != b.block(want) {
					t.Fatalf("got %s %v, want block %d", p, ok, want)
				}
				if ok {
					held, next = append(held, p), (want+1)%b.Max
				}
			case op == 1 && len(held) > 0:
				i := int(x) % len(held)
				b.release(held[i])
				held = slices.Delete(held, i, i+1)
			case op > 1:
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 243 + x%3, y, x}), 8+int(y)%25).Masked()
				b.occupy(p)
				held = append(held, p)
			}
			count := 0
			for i := range b.Max {
				if is := b.used[i/64]>>(i%64)&1 == 1; is != used(i) {
					t.Fatalf("block %s is used: %v, held %v", b.block(i), is, held)
				} else if is {
					count++
				}
			}
			if b.Used != count || b.Allocations-b.Releases != count || !network.Contains(b.block(b.Max-1).Addr()) {
				t.Fatalf("%d are used: %+v", count, b.metrics)
			}
		}
	})
}
