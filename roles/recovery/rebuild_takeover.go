package recovery

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// takenOver are the bridges that have an uplink's place, by name. They are added to
// the bridges that networks share, also under the uplink's name, which is what
// nftables elements tell.
func takenOver(ctx context.Context, h *roles.Host, links []netops.LinkInfo, bridges map[string]netops.LinkInfo) (map[string]*netops.Takeover, error) {
	all, err := h.Net.Takeovers(ctx)
	by := map[string]*netops.Takeover{}
	for _, t := range all {
		by[t.Bridge] = &t
		for _, l := range links {
			if l.Name == t.Bridge {
				bridges[t.Bridge], bridges[t.Uplink] = l, l
			}
		}
	}
	return by, err
}

// neighbours are the permanent entries that an attachment at a port of such a bridge
// has on it: they do not go with the port.
func (r *rebuilder) neighbours(a *store.Attachment, bridge string) []netops.Object {
	if r.takeovers[bridge] == nil {
		return nil
	}
	var made []netops.Object
	for _, p := range a.Addresses {
		made = append(made, &netops.Neigh{In: netops.Host, Link: bridge, IP: p.Addr(), MAC: cmp.Or(a.MAC, record.MAC(a.Key, "container"))})
	}
	return made
}
