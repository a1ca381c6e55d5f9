package migrate

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/leasefiles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Departed lists the attachments of a network that have address files of the reference's
// host-local and are not valid, with those of their addresses that no attachment has now.
// The GC that releases their leases keeps these files, so the GC of chained roles can find
// in them the owner of the reference plugins' objects, which contain only a container ID or
// an address.
func (ReferencePlugins) Departed(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) ([]netops.ReferencePluginAttachment, error) {
	dirs, held, err := poolsAndHeld(ctx, h, network)
	if err != nil {
		return nil, err
	}
	stays := map[roles.AttachmentID]bool{}
	for _, v := range valid {
		stays[v] = true
		stays[roles.AttachmentID{ContainerID: v.ContainerID}] = true // files of before 2018 have no interface name
	}
	gone := map[store.Key]*netops.ReferencePluginAttachment{}
	for _, dir := range dirs {
		files, skipped, err := leasefiles.Read(ctx, store.PoolID{DataDir: dir, Network: network})
		if err != nil {
			h.Log.Warn("read the reference's addresses", "error", err)
			continue
		}
		for _, f := range skipped {
			h.Log.Debug("skip a file among the reference's addresses", "file", f.Name, "reason", f.Reason)
		}
		for _, f := range files {
			key := store.Key{Network: network, ContainerID: f.ContainerID, IfName: f.IfName}
			if stays[roles.AttachmentID{ContainerID: f.ContainerID, IfName: f.IfName}] || held[f.Address] != (store.Key{}) && held[f.Address] != key {
				continue
			}
			if gone[key] == nil {
				gone[key] = &netops.ReferencePluginAttachment{Network: network, ContainerID: f.ContainerID, IfName: f.IfName}
			}
			gone[key].Addresses = append(gone[key].Addresses, f.Address)
		}
	}
	var all []netops.ReferencePluginAttachment
	for _, f := range gone {
		all = append(all, *f)
	}
	return all, nil
}

// poolsAndHeld returns the data directories of a network's pools, and the owner of each
// address on the node, from our records and from the runtimes' caches.
func poolsAndHeld(ctx context.Context, h *roles.Host, network string) (dirs []string, held map[netip.Addr]store.Key, err error) {
	dirs, held = []string{recovery.DefaultDataDir}, map[netip.Addr]store.Key{}
	for _, c := range recovery.ReadCaches(h, []string{recovery.DefaultCacheDir}) {
		for _, p := range c.Addresses() {
			held[p.Addr()] = c.Key()
		}
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		pools, err := tx.Pools()
		if err != nil {
			return err
		}
		for _, id := range pools {
			if id.Network == network && filepath.IsAbs(id.DataDir) && !slices.Contains(dirs, id.DataDir) {
				dirs = append(dirs, id.DataDir)
			}
		}
		return attachment.EachAddress(tx, func(owner store.Key, a netip.Addr) { held[a] = owner })
	})
	return dirs, held, err
}
