package record

import (
	"cmp"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// NICs are the host's interfaces by hardware address, one for each. A bridge may
// have that of its port, which is meant then; the virtual function below an
// accelerated interface, or a bond's member, that of the one it is enslaved to; and
// what is made upon an interface came after it.
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
