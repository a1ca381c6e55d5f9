package record

import (
	"cmp"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// NICs maps each hardware address to one of the host's interfaces. If several have it,
// a port is preferred to its bridge, a master to a virtual function or bond member below
// it, and an interface to those that were made on top of it, which have higher indexes.
func NICs(links []netops.LinkInfo) map[string]netops.LinkInfo {
	byIndex := slices.SortedFunc(slices.Values(links), func(a, b netops.LinkInfo) int { return cmp.Compare(a.Index, b.Index) })
	byName := make(map[string]netops.LinkInfo, len(links))
	for _, l := range links {
		byName[l.Name] = l
	}
	nics := make(map[string]netops.LinkInfo, len(links))
	for _, l := range byIndex {
		upper := byName[l.Master]
		below := upper.MAC == l.MAC && upper.Kind != "bridge"
		if _, known := nics[l.MAC]; !known && !below && l.Kind != "bridge" && roles.UnicastMAC(l.MAC) != "" {
			nics[l.MAC] = l
		}
	}
	return nics
}
