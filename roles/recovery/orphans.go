package recovery

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// RemoveOrphans deletes what has one of our labels, has no record and is not valid: interfaces of the network with the rules that are bound to them, and nftables
// elements and rules of interfaces that are gone, which do not name their network. They
// are left over if the state was lost.
func RemoveOrphans(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) error {
	rules, err := h.Net.BoundRules(ctx) // before the links: an ADD makes its link first
	if err != nil {
		return err
	}
	links, err := h.Net.Links(ctx, nil) // before the records: an ADD records first
	if err != nil {
		return err
	}
	elements, err := h.Net.Labelled(ctx, record.LabelPrefix)
	if err != nil {
		return err
	}
	known, bound := map[string]bool{}, map[string]bool{}
	for _, v := range valid {
		known[record.Label(store.Key{Network: network, ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			known[record.Label(a.Key)] = true
			known[a.ContainerID] = true
			bound[a.HostLink] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	var stray []netops.Object
	for _, l := range links {
		info, ok := record.ParseAlias(l.Alias)
		bound[l.Name] = bound[l.Name] || !ok || info.Key.Network != network || known[info.Label]
		if ok && info.Key.Network == network && !known[info.Label] {
			stray = append(stray, orphanLink(l, info))
			h.Log.Info("removing interface without a record", "link", l.Name, "alias", l.Alias)
		}
	}
	for _, e := range elements {
		if record.IsLabel(labelOf(e)) && !known[labelOf(e)] {
			stray = append(stray, e)
			h.Log.Info("removing firewall rule without a record", "rule", e.String())
		}
	}
	for _, r := range rules {
		if !bound[r.IIF] {
			stray = append(stray, r)
			h.Log.Info("removing policy rule without an attachment", "rule", r.String())
		}
	}
	return h.Net.Undo(ctx, record.Inverses(stray), nil)
}

// orphanLink is the object behind a link on the host: a link that was made there, or a
// device that returned when its namespace ended, and gets its name back.
func orphanLink(l netops.LinkInfo, info record.AliasInfo) netops.Object {
	if info.Device != "" {
		return &netops.Move{From: netops.Host, Name: info.Device, To: netops.Container, As: l.Name, Alias: info.Label}
	}
	return &netops.Link{In: netops.Host, Name: l.Name, Kind: l.Kind, Alias: info.Label}
}

// labelOf is the label of what Net.Labelled found.
func labelOf(o netops.Object) string {
	switch o := o.(type) {
	case *netops.Element:
		return o.Label
	case *netops.Forward:
		return o.Label
	}
	return ""
}

// setShared marks what Net.Labelled found and networks share.
func setShared(o netops.Object) {
	switch o := o.(type) {
	case *netops.Element:
		o.Shared = true
	case *netops.Forward:
		o.Shared = true
	}
}
