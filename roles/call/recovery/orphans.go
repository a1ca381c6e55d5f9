package recovery

import (
	"context"
	"maps"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Orphans are objects that have one of our labels and no record. Losing the state leaves such
// objects.
type Orphans struct {
	// Links are interfaces of the host.
	Links []OrphanLink
	// Elements are nftables elements and rules in iptables' filter table.
	Elements []netops.Object
	// Rules are policy rules of interfaces that have no attachment.
	Rules []*netops.Rule
}

// OrphanLink is an interface of the host that has no record.
type OrphanLink struct {
	netops.LinkInfo
	attachment.AliasInfo
}

// Known returns the labels of recorded attachments, to which the caller can add others.
func Known(atts []store.Attachment) map[string]bool {
	known := map[string]bool{}
	for i := range atts {
		known[attachment.Label(atts[i].Key)] = true
		known[atts[i].ContainerID] = true // a rebuilt record's label
	}
	return known
}

// OrphanLinks returns the links with a label that is not known.
func OrphanLinks(links []netops.LinkInfo, known map[string]bool) (all []OrphanLink) {
	for _, l := range links {
		if info, ok := attachment.ParseAlias(l.Alias); ok && !known[info.Label] {
			all = append(all, OrphanLink{l, info})
		}
	}
	return all
}

// FindOrphans returns the orphans whose labels are not in others. It reads the kernel before the
// records, because an ADD records an object before it makes it.
func FindOrphans(ctx context.Context, h *roles.Host, others map[string]bool) (*Orphans, error) {
	rules, err := h.Net.BoundRules(ctx) // before the links: an ADD makes its link first
	if err != nil {
		return nil, err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, err
	}
	elements, err := h.Net.Labelled(ctx, attachment.LabelPrefix)
	if err != nil {
		return nil, err
	}
	bound, known := map[string]bool{}, map[string]bool{}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		known = Known(atts)
		for i := range atts {
			bound[atts[i].HostLink] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(known, others)
	out := &Orphans{Links: OrphanLinks(links, known)}
	for _, l := range links {
		info, ok := attachment.ParseAlias(l.Alias)
		bound[l.Name] = bound[l.Name] || !ok || known[info.Label]
	}
	for _, e := range elements {
		if attachment.IsLabel(labelOf(e)) && !known[labelOf(e)] {
			out.Elements = append(out.Elements, e)
		}
	}
	for _, r := range rules {
		if !bound[r.IIF] {
			out.Rules = append(out.Rules, r)
		}
	}
	return out, nil
}

// LastingOrphans finds the orphans twice and returns those of both times. A DEL between the reads
// of the kernel and of the records leaves nothing for the second time.
func LastingOrphans(ctx context.Context, h *roles.Host, others map[string]bool) (*Orphans, error) {
	o, err := FindOrphans(ctx, h, others)
	if err != nil || len(o.Links)+len(o.Elements)+len(o.Rules) == 0 {
		return o, err
	}
	before := map[string]bool{}
	for _, l := range o.Links {
		before[l.Name+" "+l.Alias] = true
	}
	for _, e := range o.Elements {
		before[e.String()] = true
	}
	for _, r := range o.Rules {
		before[r.String()] = true
	}
	o, err = FindOrphans(ctx, h, others)
	if err != nil {
		return nil, err
	}
	o.Links = slices.DeleteFunc(o.Links, func(l OrphanLink) bool { return !before[l.Name+" "+l.Alias] })
	o.Elements = slices.DeleteFunc(o.Elements, func(e netops.Object) bool { return !before[e.String()] })
	o.Rules = slices.DeleteFunc(o.Rules, func(r *netops.Rule) bool { return !before[r.String()] })
	return o, nil
}

// Unbound returns the elements and rules that are of none of the links.
func (o *Orphans) Unbound() []netops.Object {
	linked := map[string]bool{}
	for i := range o.Links {
		linked[o.Links[i].Label], linked[o.Links[i].Name] = true, true
	}
	var all []netops.Object
	for _, e := range o.Elements {
		if !linked[labelOf(e)] {
			all = append(all, e)
		}
	}
	for _, r := range o.Rules {
		if !linked[r.IIF] {
			all = append(all, r)
		}
	}
	return all
}

// RemoveOrphans deletes the orphans that are not of a valid attachment. They are the network's
// interfaces with the rules that are bound to them, and the nftables elements and policy
// rules of interfaces that do not exist, of any network, because these objects do not
// contain a network's name.
func RemoveOrphans(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) error {
	others := map[string]bool{}
	for _, v := range valid {
		others[attachment.Label(store.Key{Network: network, ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	o, err := FindOrphans(ctx, h, others)
	if err != nil {
		return err
	}
	var stray []netops.Object
	kept := map[string]bool{}
	for _, l := range o.Links {
		if l.Key.Network == network {
			stray = append(stray, attachment.Neighbours(l.Master, attachment.MAC(l.Key, "container"), l.AliasInfo.Addresses, true)...)
			stray = append(stray, orphanLink(l.LinkInfo, l.AliasInfo))
		} else {
			kept[l.Name] = true
		}
	}
	stray = append(stray, o.Elements...)
	for _, r := range o.Rules {
		if !kept[r.IIF] {
			stray = append(stray, r)
		}
	}
	for _, s := range stray {
		h.Log.Info("removing an object without a record", "object", s.String())
	}
	return h.Net.Undo(ctx, attachment.Inverses(stray), nil)
}

// orphanLink returns the object for a link on the host: the link itself, or the move of a
// device that the kernel returned to the host when its namespace was deleted. Undoing the
// move renames the device.
func orphanLink(l netops.LinkInfo, info attachment.AliasInfo) netops.Object {
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
