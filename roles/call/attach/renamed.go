package attach

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// withRecordedNetwork returns DEL's request with the network name of ADD. A configuration can be
// renamed while its containers run. If nothing is stored under the request's key, the only record with
// the same container, interface and role counts, if prevResult describes it and the request is not for
// another namespace. Without prevResult ADD may have failed because of that record.
func withRecordedNetwork(ctx context.Context, h *roles.Host, req *roles.Request, role string) (*roles.Request, error) {
	if req.PrevResult == nil {
		return req, nil
	}
	f, _, err := recovery.Find(ctx, h, req.Key())
	if err != nil || f.Attachment != nil || len(f.Leases) > 0 {
		return req, err
	}
	all, err := attachment.Matching(ctx, h, func(a *store.Attachment) bool {
		return a.ContainerID == req.ContainerID && a.IfName == req.IfName && a.Part(role) != nil
	})
	if err != nil || len(all) != 1 || !describes(req.PrevResult, &all[0]) {
		return req, err
	}
	was := all[0]
	ns, err := attachment.OpenIfPresent(h, req.Netns)
	if err != nil {
		return nil, err
	}
	if ns != nil {
		defer ns.Close()
		if was.Netns.Inode != 0 && !attachment.IsRecorded(ns, was.Netns) {
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

// describes reports whether a result is of a recorded attachment: it has one of the addresses or, if the
// record has none, the MAC of the interface.
func describes(r *roles.Result, a *store.Attachment) bool {
	for _, ip := range r.IPs {
		if p, ok := Prefix(ip.Address); ok && slices.Contains(a.Addresses, p) {
			return true
		}
	}
	if len(a.Addresses) > 0 {
		return false
	}
	return slices.ContainsFunc(r.Interfaces, func(i *roles.ResultInterface) bool {
		return i.Sandbox != "" && i.Name == a.IfName && strings.EqualFold(i.Mac, a.MAC)
	})
}
