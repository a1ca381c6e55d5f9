package ranges

import (
	"cmp"
	"context"
	"net/netip"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// Shown is the output of `cnibox range show`.
type Shown struct {
	Blocks []ShownBlock `json:"blocks"`
	now    time.Time
}

// ShownBlock is a block of this node.
type ShownBlock struct {
	// Pool is "" for the pool that networks share.
	Pool  string     `json:"pool"`
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
	// Size is the number of addresses. Used is how many are leased.
	Size  uint64    `json:"size"`
	Used  int       `json:"used"`
	Since time.Time `json:"since"`
	// Valid is false if the agent could not read for long that this node has the block. Then ADD gives none of
	// its addresses.
	Valid bool      `json:"valid"`
	Until time.Time `json:"until"`
}

// Show returns this node's blocks. It does not query the registry.
func Show(ctx context.Context, h *roles.Host) (*Shown, error) {
	var out *Shown
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		out = &Shown{Blocks: []ShownBlock{}, now: h.Now()}
		blocks, err := tx.RangeBlocks()
		if err != nil {
			return err
		}
		for i := range blocks {
			b := &blocks[i]
			of := []leasing.Interval{{Lo: b.First, Hi: b.Last}}
			leases, err := leasesIn(tx, b.Pool, of)
			if err != nil {
				return err
			}
			out.Blocks = append(out.Blocks, ShownBlock{
				Pool: b.Pool, First: b.First, Last: b.Last, Size: count(of), Used: len(leases),
				Since: b.Since, Valid: b.Valid(out.now, h.SinceBoot()), Until: b.Until,
			})
		}
		return nil
	})
	return out, err
}

// Table returns the blocks as a table.
func (s *Shown) Table() (head []string, rows [][]string) {
	for _, b := range s.Blocks {
		valid := "no"
		if b.Valid {
			valid = b.Until.Sub(s.now).Round(time.Second).String()
		}
		rows = append(rows, []string{
			b.First.String(), b.Last.String(), cmp.Or(b.Pool, "shared"), strconv.Itoa(b.Used) + " of " + strconv.FormatUint(b.Size, 10),
			s.now.Sub(b.Since).Round(time.Second).String(), valid,
		})
	}
	return []string{"FIRST", "LAST", "POOL", "USED", "AGE", "VALID FOR"}, rows
}
