package migrate

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// Departed lists the attachments of a network that have address files of the reference's
// host-local and are not valid, with those of their addresses that no attachment has now.
// The GC that releases their leases keeps these files, so the GC of chained roles can find
// in them the owner of the reference plugins' objects, which contain only a container ID or
// an address.
func Departed(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) ([]netops.ReferencePluginAttachment, error) {
	if !filepath.IsLocal(network) || filepath.Base(network) != network {
		return nil, nil // the reference host-local cannot have this directory
	}
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
		for _, f := range readLeaseFiles(h, filepath.Join(dir, network)) {
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
		leases, err := record.Leases(tx, "")
		for _, l := range leases {
			held[l.Address] = l.Owner
		}
		if err != nil {
			return err
		}
		atts, err := tx.Attachments("")
		for _, a := range atts {
			for _, p := range a.Addresses {
				held[p.Addr()] = a.Key
			}
		}
		return err
	})
	return dirs, held, err
}

// readLeaseFiles reads the address files in a directory of the reference's host-local,
// and skips other files.
func readLeaseFiles(h *roles.Host, dir string) []LeaseFile {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Log.Warn("read the reference's addresses", "error", err)
	}
	var all []LeaseFile
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue // the files lock and last_reserved_ip
		}
		content, err := smallfile.ReadOwn(filepath.Join(dir, e.Name()), maxLeaseFile)
		if err == nil {
			var f LeaseFile
			if f, err = ParseLeaseFile(e.Name(), content); err == nil {
				all = append(all, f)
			}
		}
		if err != nil {
			h.Log.Debug("skip a file among the reference's addresses", "file", e.Name(), "error", err)
		}
	}
	return all
}
