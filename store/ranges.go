package store

import (
	"errors"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// RangePool returns the pool of a network's addresses: the name of a pool that networks share, or the network's
// own, or "" for the pool of all others.
func RangePool(network, shared string, overlapping bool) string {
	if shared != "" || overlapping {
		return shared
	}
	return network
}

// RangeDir returns what is in place of the data directory of the pools of leases with the addresses of one pool
// of ranges.
func RangeDir(pool string) string { return RangeDataDir + pool }

// RangeBlock is a block of a cluster-wide range that this node may give addresses from.
type RangeBlock struct {
	// Pool is the network's name, or "" for the pool that all other networks share.
	Pool  string     `json:"pool,omitempty"`
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
	Since time.Time  `json:"since"`
	// Until and UntilBoot end the block's validity, by the clock and by the time since the boot, unless the
	// agent reads in the registry again that the node has it.
	Until     time.Time     `json:"until"`
	UntilBoot time.Duration `json:"untilBoot"`
}

// Valid reports whether addresses may be given from the block. Both clocks count, because one stands still
// while a virtual machine is suspended, and the other may be set.
func (b *RangeBlock) Valid(now time.Time, sinceBoot time.Duration) bool {
	return now.Before(b.Until) && sinceBoot < b.UntilBoot
}

// rangeGrants is the record of this node's blocks.
type rangeGrants struct {
	Blocks []RangeBlock `json:"blocks,omitempty"`
}

// SinceBoot returns the time since the boot, with suspended time.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 1<<63 - 1 // every grant has ended
	}
	return time.Duration(ts.Nano())
}

// RangeDemand is a range set of a network on this node whose addresses ran out. The agent leases blocks for
// it.
type RangeDemand struct {
	Network string `json:"network"`
	// Set is the number of the range set, from 0.
	Set  int    `json:"set"`
	Pool string `json:"pool,omitempty"`
	// Bits is the length of the range's prefix.
	Bits int `json:"bits,omitempty"`
	// Free has the first and last address of each part of the range that may be given out.
	Free [][2]netip.Addr `json:"free"`
	Time time.Time       `json:"time"`
}

// grantsKey is the key of the grants. No demand has a key of one text.
const grantsKey = "grants"

// RangeBlocks returns this node's blocks. Without a record there are none.
func (tx *Tx) RangeBlocks() ([]RangeBlock, error) {
	var g rangeGrants
	err := kv.Get(tx.b, bucketRanges, kv.EncodeKey(grantsKey), &g)
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return g.Blocks, err
}

// PutRangeBlocks stores this node's blocks.
func (tx *Tx) PutRangeBlocks(blocks []RangeBlock) error {
	return kv.Store(tx.b, bucketRanges, "blocks of ranges", &rangeGrants{blocks}, grantsKey)
}

// RangeDemands returns the demands by network and set. Damaged records are skipped and named in the error.
func (tx *Tx) RangeDemands() ([]RangeDemand, error) {
	var all []RangeDemand
	err := kv.Each(tx.b, bucketRanges, nil, func(k, v []byte) error {
		if string(k) == string(kv.EncodeKey(grantsKey)) {
			return nil
		}
		var d RangeDemand
		err := kv.Decode(bucketRanges, k, v, &d)
		if err == nil {
			all = append(all, d)
		}
		return err
	})
	return all, err
}

// PutRangeDemand stores a demand.
func (tx *Tx) PutRangeDemand(d *RangeDemand) error {
	return kv.Store(tx.b, bucketRanges, "range demand", d, d.Network, strconv.Itoa(d.Set))
}

// DeleteRangeDemand deletes a demand.
func (tx *Tx) DeleteRangeDemand(d *RangeDemand) error {
	return kv.Delete(tx.b, bucketRanges, kv.EncodeKey(d.Network, strconv.Itoa(d.Set)))
}
