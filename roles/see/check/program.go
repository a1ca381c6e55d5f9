package check

import (
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/view"
)

// DevicePrograms are what other programs put on a link that may drop packets besides the packet filters: XDP, filters of tc and queueing
// disciplines. A Fix runs on the host, also for a link of a container.
type DevicePrograms struct {
	// Drop drop all packets. Limit drop those of which there are too many, or are slow. Of Unknown it is not known.
	Drop, Limit, Unknown []netops.DeviceFilter
}

// Programs returns the programs of a link.
func Programs(v *view.Namespace, link string) (p DevicePrograms, err error) {
	all, err := v.DeviceFilters()
	for _, f := range slices.Clone(all[link]) {
		if f.Fix != "" {
			f.Fix = v.Enter + f.Fix
		}
		switch {
		case f.Limits != "":
			p.Limit = append(p.Limit, f)
		case f.IsAlways:
			p.Drop = append(p.Drop, f)
		default:
			p.Unknown = append(p.Unknown, f)
		}
	}
	return p, err
}
