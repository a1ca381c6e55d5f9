package multi

import (
	"context"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/store"
)

// dropLinks deletes the interfaces of networks whose plugins run in this process in one batch,
// before their DEL. This is an optimization: DEL removes what dropLinks leaves. A network whose
// addresses are released over the interface keeps it.
func (c *runner) dropLinks(ctx context.Context, all []store.Delegate, ns *netops.Namespace) {
	var keys []store.Key
	for i := range all {
		if a := c.answer(all[i].IfName); a != nil && a.Gone {
			continue
		}
		l, err := parse(&all[i])
		if err != nil || c.isExecuted(&all[i]) || slices.ContainsFunc(l.Plugins, func(p netlist.Plugin) bool { return p.IPAM != "" && c.h.Delegate.OverLink(p.IPAM) }) {
			continue
		}
		keys = append(keys, store.Key{Network: l.Name, ContainerID: c.out.Owner.ContainerID, IfName: all[i].IfName})
	}
	if len(keys) < 2 {
		return
	}
	if err := attachment.DeleteLinks(ctx, c.h, keys, ns); err != nil {
		c.h.Log.Debug("cannot delete the interfaces in one batch", "error", err)
	}
}
