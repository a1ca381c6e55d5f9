package recovery

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// takenOver returns the bridges that replaced an uplink, by the bridge's name. It adds
// them to the shared bridges, also under the uplink's name, because nftables elements
// contain the uplink's name.
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

// neighbours returns an attachment's neighbour entries on a bridge. Those on a bridge that
// replaced an uplink are permanent. The kernel does not delete them together with the bridge port.
func (r *rebuilder) neighbours(a *store.Attachment, bridge string) []netops.Object {
	return attachment.Neighbours(bridge, cmp.Or(a.MAC, attachment.MAC(a.Key, "container")), a.Addresses, r.takeovers[bridge] == nil)
}
