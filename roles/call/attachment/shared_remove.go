package attachment

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// RemoveShared removes the shared objects of a network without attachments, except those
// that another network uses. It does nothing if another process holds one of the named
// locks.
func RemoveShared(ctx context.Context, h *roles.Host, network string, names []string) error {
	for _, n := range names {
		lock, ok, err := h.Store.TryLockShared(ctx, n, true)
		if err != nil || !ok {
			return err
		}
		defer lock.Unlock()
	}
	return removeSharedLocked(ctx, h, network, nil)
}

// RemoveUnused is RemoveShared for a call that removed the network's last attachment. It
// waits for the locks, at most the store's LockTimeout. An ADD that held a lock has then
// either recorded its attachment or failed. RemoveUnused also removes the objects in ours
// that no network has recorded.
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
	return removeSharedLocked(ctx, h, network, ours)
}

// removeSharedLocked does the work of RemoveShared and RemoveUnused under the locks.
func removeSharedLocked(ctx context.Context, h *roles.Host, network string, ours []netops.Object) error {
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
	removed, kept := removable(links, mine, others)
	err = unrestored(ctx, h, removed, func() error {
		if err := h.Net.Undo(ctx, removed, nil); err != nil {
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
		return h.Store.Update(ctx, func(tx *store.Tx) error { return forgetShared(tx, network, kept) })
	})
	if err != nil {
		return err
	}
	// The record is updated first, because Ensure restores all recorded elements if our
	// tables do not exist.
	return h.Net.Ensure(ctx, uncovered(removed, others), nil)
}

// uncovered returns the elements of other networks that a removed element may have
// covered. The kernel's set has no prefix inside another prefix of the same link.
func uncovered(removed, others []netops.Change) netops.Spec {
	of := map[string]bool{}
	for _, c := range removed {
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

// unrecorded returns changes that make the objects in ours that no recorded change makes.
// It omits links that do not exist or do not have our label.
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

// forgetShared deletes a network's record. If a third-party port uses some of the
// objects, it keeps a record of these for the next GC.
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

// removable splits the changes into those whose object can be removed and those to keep.
// A bridge with other ports is kept, with everything that depends on it. An object that
// another network uses is in neither list, because that network has recorded it.
func removable(links []netops.LinkInfo, mine, others []netops.Change) (removed, kept []netops.Change) {
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
			removed = append(removed, c)
		}
	}
	return removed, kept
}

// madeBy returns the names of the links that changes make, and of the other ends of
// pairs, which a rebuilt record does not contain.
func madeBy(changes []netops.Change, links []netops.LinkInfo) map[string]bool {
	made := map[string]bool{}
	for _, c := range changes {
		switch o := c.Do.Object.(type) {
		case *netops.Link:
			made[o.Name] = true
		case *netops.Takeover:
			made[o.Uplink] = true // a bridge that replaces an uplink has the uplink as a port
		}
	}
	byIndex := make(map[int]netops.LinkInfo, len(links))
	for _, l := range links {
		byIndex[l.Index] = l
	}
	for _, l := range links {
		if peer, ok := byIndex[l.PeerIndex]; ok && made[l.Name] && l.IsPairEnd() && peer.PeerIndex == l.Index {
			made[peer.Name] = true
		}
	}
	return made
}

// LinkOf returns the name of the link that an object is or depends on.
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
