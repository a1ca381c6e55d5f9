package nft

import (
	"context"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// lacking returns those of some entries of one set that the kernel neither has nor covers by a wider one, in their order.
func (c *Client) lacking(ctx context.Context, wanted []*Entry) (absent []*Entry, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	set := wanted[0].Set
	all, err := c.Entries(ctx, set)
	if err != nil {
		return nil, err
	}
	ids, want := keyed.Index(wanted, (*Entry).ID)
	_, have := keyed.Index(all, (*Entry).ID)
	for d := range keyed.Diff(slices.Values(ids), keyed.Of(have), keyed.Of(want), keyed.Always) {
		covers := func(o *Entry) bool { return o.covers(d.Want) }
		if !set.isInterval() || !slices.ContainsFunc(all, covers) {
			absent = append(absent, d.Want)
		}
	}
	return absent, nil
}

// checkStored checks that the kernel stored all of many elements. The kernel was
// observed to store only a part of a large addition.
func (c *Client) checkStored(ctx context.Context, wanted []*Entry) error {
	if len(wanted) <= maxPerMessage {
		return nil
	}
	for _, s := range c.Schema().Sets() {
		absent, err := c.lacking(ctx, ofSet(wanted, s))
		if err != nil {
			return err
		}
		for _, n := range absent { // another process may have changed the set while it was listed
			have, err := c.Holder(ctx, n)
			if err == nil && have == nil {
				err = fmt.Errorf("add %s: %w: the kernel did not store it", n, nlconn.ErrBusy)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ofSet returns those of some entries that are of a set.
func ofSet(all []*Entry, s *Set) []*Entry {
	return slices.DeleteFunc(slices.Clone(all), func(n *Entry) bool { return n.Set != s })
}
