package netops

import "context"

// RemoveTables deletes those of our nftables tables that hold no element.
func (n *Net) RemoveTables(ctx context.Context) error { return n.nft.removeBase(ctx) }
