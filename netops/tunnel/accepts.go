package tunnel

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Accepts reports whether the rules of this node's agent accept tunnelled packets from a node. Without these rules they come from any node.
// The names are those of package overlay.
func Accepts(ctx context.Context, node netip.Addr) (bool, error) {
	c := nft.New(nil, nil)
	accepted, err := accepts(ctx, c, node)
	return accepted, errors.Join(err, c.Close())
}

func accepts(ctx context.Context, c *nft.Client, node netip.Addr) (bool, error) {
	table := nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox_overlay"}
	has, err := c.HasChain(ctx, table, "input")
	if err != nil || !has {
		return err == nil, err
	}
	set := &nft.Set{Table: table, Name: "vteps4", Key: []nft.Field{nft.IP4Addr}}
	if node.Is6() {
		set = &nft.Set{Table: table, Name: "vteps6", Key: []nft.Field{nft.IP6Addr}}
	}
	entries, err := c.Entries(ctx, set)
	return slices.ContainsFunc(entries, func(e *nft.Entry) bool { return slices.Equal(e.Key, node.AsSlice()) }), err
}
