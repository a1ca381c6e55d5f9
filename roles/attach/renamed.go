package attach

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// withRecordedNetwork returns DEL's request with the network name of ADD. A configuration can be
// renamed while its containers run. If nothing is stored under the request's key, the only record with
// the same container, interface and role counts, unless the request is for another namespace.
func withRecordedNetwork(ctx context.Context, h *roles.Host, req *roles.Request, role string) (*roles.Request, error) {
	f, _, err := recovery.Find(ctx, h, req.Key())
	if err != nil || f.Attachment != nil || len(f.Leases) > 0 {
		return req, err
	}
	var all []store.Attachment
	err = h.Store.View(ctx, func(tx *store.Tx) (err error) {
		all, err = tx.Attachments("")
		return err
	})
	all = slices.DeleteFunc(all, func(a store.Attachment) bool {
		return a.ContainerID != req.ContainerID || a.IfName != req.IfName || a.Part(role) == nil
	})
	if err != nil || len(all) != 1 {
		return req, err
	}
	was := all[0]
	ns, err := record.OpenIfPresent(h, req.Netns)
	if err != nil {
		return nil, err
	}
	if ns != nil {
		defer ns.Close()
		if dev, inode := ns.ID(); was.Netns.Inode != 0 && (dev != was.Netns.Dev || inode != was.Netns.Inode) {
			return req, nil
		}
	}
	r := *req
	r.Network = was.Network
	name, err := json.Marshal(r.Network)
	if err == nil {
		r.Conf, err = rawjson.Set(r.Conf, "name", name)
	}
	h.Log.Info("the network was renamed since ADD", "network", was.Network, "container", r.ContainerID, "ifname", r.IfName)
	return &r, err
}
