package overlay

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// manyPeers returns n nodes behind the parent's network.
func manyPeers(n int, is6 bool) []Peer {
	peers := make([]Peer, n)
	for i := range peers {
		k := i + 2
		p := Peer{Name: fmt.Sprintf("node-%d", k), MAC: MAC{2, 0, 1, byte(k >> 16), byte(k >> 8), byte(k)}}
		p.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + k>>16), byte(k >> 8), byte(k)}), 32)
		p.Gateway = netip.AddrFrom4([4]byte{172, byte(16 + k>>16), byte(k >> 8), byte(k)})
		if is6 {
			p.Subnet = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x44, 5: byte(k >> 16), 6: byte(k >> 8), 7: byte(k)}), 64)
			p.Gateway = netip.AddrFrom16([16]byte{0xfd, 0x50, 13: byte(k >> 16), 14: byte(k >> 8), 15: byte(k)})
		}
		peers[i] = p
	}
	return peers
}

// BenchmarkOverlay measures programming many peers from an empty state, changing
// one or 1000 of them, removing 1000, and reading a kernel that needs no change.
func BenchmarkOverlay(b *testing.B) {
	for _, c := range []struct {
		name    string
		net     overlayNet
		classic bool
		n       int
	}{
		{"4", net4(), false, 1000},
		{"4", net4(), false, 10000},
		{"4", net4(), false, 20000},
		{"4classic", net4(), true, 5000},
		{"6", net6(), false, 10000},
	} {
		spec := c.net.spec()
		spec.Peers = manyPeers(c.n, c.net.is6)
		b.Run(fmt.Sprintf("%s/%d", c.name, c.n), func(b *testing.B) {
			nstest.TryIP("link add under0 type veth peer name under1")
			nstest.TryIP("link set under0 up")
			nstest.TryIP("link set under1 up")
			defer nstest.TryIP("link del under0")
			o, err := Open(netops.New(netops.Options{}), Options{IPv6: c.net.is6, NoNexthops: c.classic})
			if err != nil {
				b.Fatal(err)
			}
			defer o.Close()
			do := func(b *testing.B, spec Spec) {
				b.Helper()
				r, err := o.Apply(context.Background(), spec)
				if err != nil || r.Programmed != len(spec.Peers) {
					b.Fatal(r, err)
				}
			}
			b.Run("start", func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					if err := o.Remove(context.Background()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					do(b, spec)
				}
			})
			b.Run("same", func(b *testing.B) {
				for range b.N {
					do(b, spec)
				}
			})
			b.Run("one", func(b *testing.B) {
				for i := range b.N {
					spec.Peers[c.n/2].MAC = MAC{2, 0, 2, 5: byte(i)}
					do(b, spec)
				}
			})
			b.Run("burst", func(b *testing.B) {
				for i := range b.N {
					for k := range 1000 {
						spec.Peers[k].MAC = MAC{2, 0, 3, byte(i), byte(k >> 8), byte(k)}
					}
					do(b, spec)
				}
			})
			b.Run("leave", func(b *testing.B) {
				fewer := spec
				fewer.Peers = spec.Peers[1000:]
				for range b.N {
					b.StopTimer()
					do(b, spec)
					b.StartTimer()
					do(b, fewer)
				}
			})
			b.Run("look", func(b *testing.B) {
				for range b.N {
					o.mu.Lock()
					o.known = false
					o.mu.Unlock()
					do(b, spec)
				}
			})
			b.Run("remove", func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					do(b, spec)
					b.StartTimer()
					if err := o.Remove(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
