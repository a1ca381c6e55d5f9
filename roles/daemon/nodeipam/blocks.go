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
	// shared has the number of holders after the first of each block that has several.
	shared map[int]int
	next   int
	metrics
}

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

// maxBlocks bounds the memory of a network to 2 MiB.
const maxBlocks = 1 << 24

// newBlocks divides a network into blocks, which are all free.
func newBlocks(network netip.Prefix, length int) (*blocks, error) {
	most := min(network.Addr().BitLen(), network.Bits()+bits.Len(maxBlocks)-1)
	if length < network.Bits() || length > most {
		return nil, fmt.Errorf("node mask /%d: give /%d to /%d for the cluster network %s", length, network.Bits(), most, network)
	}
	n := 1 << (length - network.Bits())
	return &blocks{
		network: network, length: length, used: make([]uint64, (n+63)/64), shared: map[int]int{},
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
		b.mark(i)
		b.Tries.observe(tries)
		return b.block(i), true
	}
	return netip.Prefix{}, false
}

// occupy adds a holder to each block that overlaps p.
func (b *blocks) occupy(p netip.Prefix) {
	first, n := b.span(p)
	for i := first; i < first+n; i++ {
		if b.used[i/64]>>(i%64)&1 == 1 {
			b.shared[i]++
		} else {
			b.mark(i)
		}
	}
}

// release removes a holder from each block that overlaps p. Each release follows an occupy or take of
// the same prefix.
func (b *blocks) release(p netip.Prefix) {
	first, n := b.span(p)
	for i := first; i < first+n; i++ {
		switch more := b.shared[i]; {
		case more > 1:
			b.shared[i]--
		case more == 1:
			delete(b.shared, i)
		default:
			b.used[i/64] &^= 1 << (i % 64)
			b.Releases++
			b.count(-1)
		}
	}
}

func (b *blocks) mark(i int) {
	b.used[i/64] |= 1 << (i % 64)
	b.Allocations++
	b.count(1)
}

func (b *blocks) count(change int) {
	b.Used += change
	b.Usage = float64(b.Used) / float64(b.Max)
}

// span returns the blocks that overlap a masked prefix: the first one and their number.
func (b *blocks) span(p netip.Prefix) (first, n int) {
	switch {
	case !b.network.Overlaps(p):
		return 0, 0
	case p.Bits() <= b.network.Bits():
		return 0, b.Max
	}
	raw := p.Addr().AsSlice()
	for i := b.network.Bits(); i < b.length; i++ {
		first = first<<1 | int(raw[i/8]>>(7-i%8)&1)
	}
	if p.Bits() < b.length {
		return first, 1 << (b.length - p.Bits())
	}
	return first, 1
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
