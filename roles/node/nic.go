package node

import (
	"cmp"
	"slices"

	"github.com/cnibox/cnibox/netops"
)

// NICs are the names of the host's interfaces by hardware address. A bridge may
// have that of its port, which is meant then, and an accelerated interface that of
// the one above it, which comes first.
func NICs(links []netops.LinkInfo) map[string]string {
	byIndex := slices.SortedFunc(slices.Values(links), func(a, b netops.LinkInfo) int { return cmp.Compare(a.Index, b.Index) })
	names := map[string]string{}
	for _, l := range byIndex {
		if _, known := names[l.MAC]; !known && l.MAC != "" && l.Kind != "bridge" {
			names[l.MAC] = l.Name
		}
	}
	return names
}
