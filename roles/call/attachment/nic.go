package attachment

import (
	"cmp"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// NICs maps each MAC address to one of the host's interfaces. If several interfaces have
// the address, it prefers a port to its bridge, a bond or other master to its members,
// and a lower device to the devices on top of it, which have higher indexes.
func NICs(links []netops.LinkInfo) map[string]netops.LinkInfo {
	byIndex := slices.Clone(links)
	sorting.Func(byIndex, func(a, b netops.LinkInfo) int { return cmp.Compare(a.Index, b.Index) })
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
