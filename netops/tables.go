package netops

import (
	"context"
	"slices"
	"strings"
)

// RemoveTables deletes those of our nftables tables that hold no element.
func (n *Net) RemoveTables(ctx context.Context) error { return n.nft.removeBase(ctx) }

// Labelled reads the elements of all our nftables sets whose label begins with
// a text, by set, and such rules in iptables' filter tables. None is Shared:
// that the label tells only those who made it.
func (n *Net) Labelled(ctx context.Context, prefix string) ([]Object, error) {
	var out []Object
	sets := n.nft.schema().sets()
	slices.SortFunc(sets, func(a, b *nftSet) int { return strings.Compare(a.name, b.name) })
	for _, set := range sets {
		all, err := n.nft.list(ctx, set.name)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if strings.HasPrefix(e.Label, prefix) {
				out = append(out, e)
			}
		}
	}
	forwards, err := n.forwards(ctx, prefix)
	for _, f := range forwards {
		out = append(out, f)
	}
	return out, err
}
