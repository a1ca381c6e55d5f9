package nodeipam

import (
	"fmt"
	"math/bits"
	"net/netip"
)

// blocks are the equal parts of a cluster network that nodes get. The search for a free block starts
// after the last one that was given, so that a released block is reused last. This is the order of
// kube-controller-manager, and the metrics have its names.
type blocks struct {
	network netip.Prefix
	length  int      // of each block's prefix
	used    []uint64 // one bit for each block
	// holders has the number of holders of each span that has some.
	holders map[span]int32
	next    int
	metrics
}

// span is n adjacent blocks from the first one. Spans are those of prefixes, so one contains the other or they are disjoint.
type span struct{ first, n int32 }

// metrics are kube-controller-manager's metrics of one cluster network.
type metrics struct {
	// Range is the ClusterCIDR, or empty for -cluster-cidr.
	Range       string       `json:"range,omitempty"`
	ClusterCIDR netip.Prefix `json:"clusterCIDR"`
	Allocations int          `json:"node_ipam_controller_cidrset_cidrs_allocations_total"`
	Releases    int          `json:"node_ipam_controller_cidrset_cidrs_releases_total"`
	Max         int          `json:"node_ipam_controller_cirdset_max_cidrs"`
	Usage       float64      `json:"node_ipam_controller_cidrset_usage_cidrs"`
	Tries       histogram    `json:"node_ipam_controller_cidrset_allocation_tries_per_request"`
	// Used is the number of blocks that are not free.
	Used int `json:"used"`
}

// histogram counts values up to 1, 5, 25, 125, 625 and all.
type histogram struct {
	Buckets [6]int `json:"buckets"`
	Sum     int    `json:"sum"`
}

func (h *histogram) observe(v int) {
	h.Sum += v
	for i, most := 0, 1; i < len(h.Buckets); i, most = i+1, most*5 {
		if v <= most || i == len(h.Buckets)-1 {
			h.Buckets[i]++
		}
	}
}

// maxBlocks bounds the bits of a network to 2 MiB.
const maxBlocks = 1 << 24

// newBlocks divides a network into blocks, which are all free.
func newBlocks(network netip.Prefix, length int) (*blocks, error) {
	most := min(network.Addr().BitLen(), network.Bits()+bits.Len(maxBlocks)-1)
	if length < network.Bits() || length > most {
		return nil, fmt.Errorf("node mask /%d: give /%d to /%d for the cluster network %s", length, network.Bits(), most, network)
	}
	n := 1 << (length - network.Bits())
	return &blocks{
		network: network, length: length, used: make([]uint64, (n+63)/64), holders: map[span]int32{},
		metrics: metrics{ClusterCIDR: network, Max: n},
	}, nil
}

// take gives the next free block, or false if there is none.
func (b *blocks) take() (netip.Prefix, bool) {
	for tries := 0; tries < b.Max; {
		i := (b.next + tries) % b.Max
		skip := bits.TrailingZeros64(^b.used[i/64] >> (i % 64))
		if left := min(64-i%64, b.Max-i); skip >= left {
			tries += left
			continue
		}
		tries += skip
		i += skip
		b.next = (i + 1) % b.Max
		b.Tries.observe(tries)
		p := b.block(i)
		b.occupy(p)
		return p, true
	}
	return netip.Prefix{}, false
}

// occupy adds a holder to the blocks that overlap p.
func (b *blocks) occupy(p netip.Prefix) {
	s := b.span(p)
	if s.n == 0 {
		return
	}
	b.holders[s]++
	if b.holders[s] == 1 {
		b.Allocations += b.mark(s, true)
	}
}

// release removes a holder from the blocks that overlap p. Each release follows an occupy or take of
// the same prefix.
func (b *blocks) release(p netip.Prefix) {
	s := b.span(p)
	if s.n == 0 {
		return
	}
	b.holders[s]--
	if b.holders[s] > 0 {
		return
	}
	delete(b.holders, s)
	for n := s.n; int(n) < b.Max; {
		n *= 2
		if b.holders[span{s.first &^ (n - 1), n}] > 0 {
			return
		}
	}
	released := -b.mark(s, false)
	if s.n > 1 {
		for other := range b.holders {
			if other.first >= s.first && other.first < s.first+s.n {
				released -= b.mark(other, true)
			}
		}
	}
	b.Releases += released
}

// mark marks blocks as used or free, 64 at a time. It returns how many more are used now.
func (b *blocks) mark(s span, used bool) (more int) {
	mask := ^uint64(0)
	if s.n < 64 {
		mask = (1<<s.n - 1) << (s.first % 64)
	}
	for i := s.first / 64; i*64 < s.first+s.n; i++ {
		before := b.used[i]
		b.used[i] &^= mask
		if used {
			b.used[i] |= mask
		}
		more += bits.OnesCount64(b.used[i]) - bits.OnesCount64(before)
	}
	b.Used += more
	b.Usage = float64(b.Used) / float64(b.Max)
	return more
}

// span returns the blocks that overlap a masked prefix.
func (b *blocks) span(p netip.Prefix) span {
	switch {
	case !b.network.Overlaps(p):
		return span{}
	case p.Bits() <= b.network.Bits():
		return span{0, int32(b.Max)}
	}
	first := 0
	raw := p.Addr().AsSlice()
	for i := b.network.Bits(); i < b.length; i++ {
		first = first<<1 | int(raw[i/8]>>(7-i%8)&1)
	}
	return span{int32(first), 1 << max(0, b.length-p.Bits())}
}

// block returns the block with a number.
func (b *blocks) block(n int) netip.Prefix {
	raw := b.network.Addr().AsSlice()
	for i := b.length - 1; i >= b.network.Bits(); i-- {
		raw[i/8] |= byte(n&1) << (7 - i%8)
		n >>= 1
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(addr, b.length)
}
