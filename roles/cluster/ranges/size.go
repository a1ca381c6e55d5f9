package ranges

import (
	"math/bits"

	"github.com/cnibox/cnibox/roles/call/leasing"
)

// Bounds of the addresses that a node takes at a time.
const (
	firstBlock = 16
	laterBlock = 64
)

// blockSize returns how many addresses a node takes next of a range of which it uses some. A small range
// gives small blocks, so that 64 nodes get one.
func blockSize(size uint64, used int) int {
	least := clamp(size/64, 1, firstBlock)
	most := clamp(size/16, least, laterBlock)
	return int(floorPower(clamp(uint64(used)/2, least, most)))
}

// reserve returns the number of free addresses below which a node takes another block: half a block.
// Single addresses are taken when they are needed.
func reserve(block int) int { return block / 2 }

func clamp(n, low, high uint64) uint64 { return min(max(n, low), high) }

// floorPower returns the largest power of two that is not above n, which is not 0.
func floorPower(n uint64) uint64 { return 1 << (bits.Len64(n) - 1) }

// count returns the number of addresses of intervals, at most the largest uint64.
func count(of []leasing.Interval) uint64 {
	r := leasing.Range{Free: of}
	return r.Count()
}
