package netops

import (
	"context"
	"fmt"
)

// checkStored looks whether all of many elements are there: the kernel has
// been seen to take large additions in part.
func (c *nft) checkStored(ctx context.Context, wanted []*entry) error {
	if len(wanted) <= maxPerMessage {
		return nil
	}
	for len(wanted) > 0 {
		set := wanted[0].set
		have, err := c.entries(ctx, set)
		if err != nil {
			return err
		}
		stored := map[string]bool{}
		for _, n := range have {
			stored[string(n.key)+string(n.end)] = true
		}
		for len(wanted) > 0 && wanted[0].set == set {
			n := wanted[0]
			if !stored[string(n.key)+string(n.end)] {
				if err := c.checkHeld(ctx, n); err != nil {
					return err
				}
			}
			wanted = wanted[1:]
		}
	}
	return nil
}

// checkHeld is an error unless there is an element that stands for n.
func (c *nft) checkHeld(ctx context.Context, n *entry) error {
	have, err := c.holder(ctx, n)
	if err == nil && have == nil {
		err = fmt.Errorf("add %s: %w: the kernel did not store it", n, ErrBusy)
	}
	return err
}
