package netops

import (
	"context"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// RemoveTables deletes cnibox's nftables tables that contain no element.
func (n *Net) RemoveTables(ctx context.Context) error { return n.nft.RemoveBase(ctx) }

// Labelled reads the elements of all cnibox's nftables sets, and the rules in
// iptables' filter tables, whose label begins with prefix. Shared is not set in
// any of them: only the code that chose the label knows whether it is a shared
// object's label.
func (n *Net) Labelled(ctx context.Context, prefix string) ([]Object, error) {
	var out []Object
	sets := n.nft.Schema().Sets()
	slices.SortFunc(sets, func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
	for _, set := range sets {
		all, err := n.nft.List(ctx, set.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if strings.HasPrefix(e.Label, prefix) {
				out = append(out, (*Element)(e))
			}
		}
	}
	forwards, err := n.tables().Forwards(ctx, prefix)
	for _, f := range forwards {
		out = append(out, (*Forward)(f))
	}
	return out, err
}
