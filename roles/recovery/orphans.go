package recovery

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// RemoveOrphans deletes objects that have one of our labels, have no record and are not
// of a valid attachment. Losing the state leaves such objects. They are the network's
// interfaces with the rules that are bound to them, and the nftables elements and policy
// rules of interfaces that do not exist, of any network, because these objects do not
// contain a network's name.
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

// orphanLink returns the object for a link on the host: the link itself, or the move of a
// device that the kernel returned to the host when its namespace was deleted. Undoing the
// move renames the device.
func orphanLink(l netops.LinkInfo, info record.AliasInfo) netops.Object {
	if info.Device != "" {
		return &netops.Move{From: netops.Host, Name: info.Device, To: netops.Container, As: l.Name, Alias: info.Label}
	}
	return &netops.Link{In: netops.Host, Name: l.Name, Kind: l.Kind, Alias: info.Label}
}

// labelOf returns the label of an object that Net.Labelled found.
func labelOf(o netops.Object) string {
	switch o := o.(type) {
	case *netops.Element:
		return o.Label
	case *netops.Forward:
		return o.Label
	}
	return ""
}

// setShared marks an object that Net.Labelled found as shared.
func setShared(o netops.Object) {
	switch o := o.(type) {
	case *netops.Element:
		o.Shared = true
	case *netops.Forward:
		o.Shared = true
	}
}
