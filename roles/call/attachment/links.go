package attachment

import (
	"context"
	"errors"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// DeleteLinks deletes the interfaces of several attachments of one container in one
// batch, because the kernel waits once for each single deletion. The records stay for the
// DEL of each attachment, which follows. DeleteLinks skips an attachment with nftables
// elements: its DEL deletes link and elements together, with one wait.
func DeleteLinks(ctx context.Context, h *roles.Host, keys []store.Key, ns *netops.Namespace) error {
	var links []*netops.Link
	var inside *netops.Namespace
	for _, key := range keys {
		lock, err := h.Store.LockAttachment(ctx, key)
		if err != nil {
			return err
		}
		defer lock.Unlock()
		a, err := store.Read(ctx, h.Store, func(tx *store.Tx) (*store.Attachment, error) { return tx.Attachment(key) })
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		own, err := linksOf(a)
		if err != nil {
			return err
		}
		links = append(links, own...)
		if ns != nil && IsRecorded(ns, a.Netns) {
			inside = ns
		}
	}
	return h.Net.DeleteLinks(ctx, links, inside)
}

// linksOf returns the links that an attachment's inverses delete, or none if they also
// delete elements.
func linksOf(a *store.Attachment) ([]*netops.Link, error) {
	changes, err := Changes(a)
	var links []*netops.Link
	for _, c := range changes {
		if c.Undo == nil || c.Undo.Verb != netops.VerbDel {
			continue
		}
		switch o := c.Undo.Object.(type) {
		case *netops.Element:
			return nil, err
		case *netops.Link:
			links = append(links, o)
		}
	}
	return links, err
}

// Neighbours returns a container's neighbour entries on the bridge of its link, or none without a
// bridge. They precede the link, so that their inverses run after the link's. learnt means that the
// kernel has learnt them.
func Neighbours(bridge, mac string, addresses []netip.Prefix, learnt bool) (all []netops.Object) {
	if bridge == "" {
		return nil
	}
	for _, p := range addresses {
		all = append(all, &netops.Neigh{In: netops.Host, Link: bridge, IP: p.Addr(), MAC: mac, Learnt: learnt})
	}
	return all
}
