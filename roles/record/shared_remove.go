package record

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// RemoveShared removes what a network's attachments shared, when none of them
// is left and no other network depends on it. It does nothing while another
// process holds one of the named locks.
func RemoveShared(ctx context.Context, h *roles.Host, network string, names []string) error {
	for _, n := range names {
		lock, ok, err := h.Store.TryLockShared(ctx, n, true)
		if err != nil || !ok {
			return err
		}
		defer lock.Unlock()
	}
	return removeShared(ctx, h, network, nil)
}

// RemoveUnused is RemoveShared for a call that removed the network's last attachment:
// it waits for the locks, for at most the store's LockTimeout. An ADD
// that is at work is over then, and either recorded or gone. Of the objects that are
// ours it also removes those that are not recorded.
func RemoveUnused(ctx context.Context, h *roles.Host, network string, names []string, ours []netops.Object) error {
	used := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		used = tx.Attached(network)
		return nil
	})
	if err != nil || used {
		return err
	}
	for _, n := range names {
		lock, err := h.Store.LockShared(ctx, n, true)
		if err != nil {
			return err
		}
		defer lock.Unlock()
	}
	return removeShared(ctx, h, network, ours)
}

// removeShared does the work of both under the locks.
func removeShared(ctx context.Context, h *roles.Host, network string, ours []netops.Object) error {
	var mine, others []netops.Change
	used := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		used = tx.Attached(network)
		var err error
		mine, others, err = sharedChanges(tx, network)
		return err
	})
	if err != nil || used {
		return err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return err
	}
	mine = append(unrecorded(ours, links, mine), mine...)
	gone, kept := removable(links, mine, others)
	if err := h.Net.Undo(ctx, gone, nil); err != nil {
		return err
	}
	if len(others) == 0 {
		if err := h.Net.RemoveTables(ctx); err != nil {
			return err
		}
	}
	if len(mine) == 0 {
		return nil
	}
	err = h.Store.Update(ctx, func(tx *store.Tx) error { return forgetShared(tx, network, kept) })
	if err != nil {
		return err
	}
	// After the record: where the tables are gone, all on record is made again.
	return h.Net.Ensure(ctx, uncovered(gone, others), nil)
}

// uncovered are the elements of other networks that a removed one may have covered: the
// kernel holds no prefix within another of the same link.
func uncovered(gone, others []netops.Change) netops.Spec {
	of := map[string]bool{}
	for _, c := range gone {
		if e, ok := c.Do.Object.(*netops.Element); ok {
			of[e.Set+" "+e.Key[0]] = true
		}
	}
	var spec netops.Spec
	for _, c := range others {
		if e, ok := c.Do.Object.(*netops.Element); ok && of[e.Set+" "+e.Key[0]] {
			spec.Add(e)
		}
	}
	return spec
}

// unrecorded are changes that make those of our objects that no noted change makes:
// of links those that are there with our label. A namespace looks for itself what is in it.
func unrecorded(ours []netops.Object, links []netops.LinkInfo, noted []netops.Change) []netops.Change {
	var missing []netops.Object
	for _, o := range ours {
		if l, ok := o.(*netops.Link); ok && !slices.ContainsFunc(links, func(i netops.LinkInfo) bool {
			return i.Name == l.Name && i.Kind == l.Kind && i.Alias == l.Alias
		}) {
			continue
		}
		makesIt := func(c netops.Change) bool { return identity(c.Do.Object) == identity(o) }
		if !slices.ContainsFunc(noted, makesIt) {
			missing = append(missing, o)
		}
	}
	return Inverses(missing)
}

// forgetShared keeps in a network's record the objects that a third-party port still
// uses: the next GC tries again.
func forgetShared(tx *store.Tx, network string, kept []netops.Change) error {
	if len(kept) == 0 {
		return tx.DeleteNetwork(network)
	}
	rec, err := tx.Network(network)
	if errors.Is(err, store.ErrNotFound) {
		rec, err = &store.Network{Name: network}, nil
	}
	if err != nil {
		return err
	}
	rec.Shared, err = json.Marshal(kept)
	if err != nil {
		return err
	}
	return tx.PutNetwork(rec)
}

// removable splits the changes into those whose object can be removed and those that
// are kept: a bridge with other ports stays, with everything that depends on it. An object
// that another network uses is in neither list: that network has recorded it.
func removable(links []netops.LinkInfo, mine, others []netops.Change) (gone, kept []netops.Change) {
	inUse := map[string]bool{}
	for _, c := range others {
		inUse[identity(c.Do.Object)] = true
	}
	made := madeBy(mine, links)
	keep := map[string]bool{}
	for _, l := range links {
		if l.Master != "" && !made[l.Name] && l.Uplink == "" {
			keep[l.Master] = true
		}
	}
	for _, c := range mine {
		switch {
		case inUse[identity(c.Do.Object)]:
		case keep[LinkOf(c.Do.Object)]:
			kept = append(kept, c)
		default:
			gone = append(gone, c)
		}
	}
	return gone, kept
}

// madeBy names the links that changes make, and the other ends of veth pairs
// among them, which a rebuilt record does not name.
func madeBy(changes []netops.Change, links []netops.LinkInfo) map[string]bool {
	made := map[string]bool{}
	for _, c := range changes {
		switch o := c.Do.Object.(type) {
		case *netops.Link:
			made[o.Name] = true
		case *netops.Takeover:
			made[o.Uplink] = true // it is the bridge's port for as long as that has its place
		}
	}
	byIndex := make(map[int]netops.LinkInfo, len(links))
	for _, l := range links {
		byIndex[l.Index] = l
	}
	for _, l := range links {
		if peer, ok := byIndex[l.PeerIndex]; ok && made[l.Name] && l.Kind == "veth" && peer.PeerIndex == l.Index {
			made[peer.Name] = true
		}
	}
	return made
}

// LinkOf names the link that an object is or depends on.
func LinkOf(o netops.Object) string {
	switch o := o.(type) {
	case *netops.Link:
		return o.Name
	case *netops.Addr:
		return o.Link
	case *netops.Element:
		return o.Key[0]
	case *netops.Forward:
		return o.Link
	case *netops.Takeover:
		return o.Bridge
	case *netops.LinkDNS:
		return o.Link
	}
	return ""
}
