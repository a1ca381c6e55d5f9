package nft

import (
	"context"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// checkStored checks that the kernel stored all of many elements. The kernel was
// observed to store only a part of a large addition.
func (c *Client) checkStored(ctx context.Context, wanted []*Entry) error {
	if len(wanted) <= maxPerMessage {
		return nil
	}
	for len(wanted) > 0 {
		set := wanted[0].Set
		have, err := c.Entries(ctx, set)
		if err != nil {
			return err
		}
		stored := map[string]bool{}
		for _, n := range have {
			stored[string(n.Key)+string(n.end)] = true
		}
		for len(wanted) > 0 && wanted[0].Set == set {
			n := wanted[0]
			if !stored[string(n.Key)+string(n.end)] {
				if err := c.checkHeld(ctx, n); err != nil {
					return err
				}
			}
			wanted = wanted[1:]
		}
	}
	return nil
}

// checkHeld returns an error unless an existing element has n's key or covers it.
func (c *Client) checkHeld(ctx context.Context, n *Entry) error {
	have, err := c.Holder(ctx, n)
	if err == nil && have == nil {
		err = fmt.Errorf("add %s: %w: the kernel did not store it", n, nlconn.ErrBusy)
	}
	return err
}
