package attachment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Remove removes a recorded attachment completely. It runs the inverses of every role's
// part, newest first, then deletes leases, claims and the record in one transaction. The
// caller holds the attachment's lock. An absent object is not an error. If an inverse
// fails, the record stays, so that a later call can try again.
func Remove(ctx context.Context, h *roles.Host, a *store.Attachment, ns *netops.Namespace) error {
	handed := false
	err := undoParts(ctx, h, a, a.Parts, ns, func(bool) (err error) {
		handed, err = deleteRecord(ctx, h, a.Key)
		return err
	})
	restoreHanded(ctx, h, handed)
	return err
}

// UndoParts runs the stored inverses of every part, newest part first, in the namespace
// that InRecordedNetns chooses. The record stays. If another process could restore objects
// from it, it no longer has the changes.
func UndoParts(ctx context.Context, h *roles.Host, a *store.Attachment, ns *netops.Namespace) error {
	return undoParts(ctx, h, a, a.Parts, ns, func(restored bool) error {
		if !restored {
			return nil
		}
		undone := *a
		undone.Parts = slices.Clone(a.Parts)
		for i := range undone.Parts {
			undone.Parts[i].Changes = nil
		}
		return h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return tx.PutAttachment(&undone) })
	})
}

// undoParts runs the stored inverses of some parts of an attachment, newest part first, and then
// forget, which deletes the changes from the record. restored reports whether other processes restore some
// of the objects from records; they do not until forget returns.
func undoParts(ctx context.Context, h *roles.Host, a *store.Attachment, parts []store.Part, ns *netops.Namespace, forget func(restored bool) error) error {
	undos := make([][]netops.Change, len(parts))
	var all []netops.Change
	var errs []error
	for i := range parts {
		changes, err := DecodeChanges(parts[i].Changes)
		if err != nil {
			errs = append(errs, fmt.Errorf("undo %s of %q: %w", parts[i].Role, a.ContainerID, err))
		}
		undos[i], all = changes, append(all, changes...)
	}
	return unrestored(ctx, h, all, func() error {
		err := InRecordedNetns(h, a, ns, func(ns *netops.Namespace) error {
			for i, changes := range slices.Backward(undos) {
				if err := h.Net.Undo(ctx, changes, ns); err != nil {
					errs = append(errs, fmt.Errorf("undo %s of %q: %w", parts[i].Role, a.ContainerID, err))
				}
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		restored, _ := netops.AreRestored(all)
		return forget(restored)
	})
}

// InRecordedNetns calls f with the attachment's recorded namespace, or with nil if it
// does not exist. ns is the namespace of the request. It may be nil, or another
// namespace, whose objects ADD did not make even if their names and addresses are equal.
// If the record has no namespace, f gets ns.
func InRecordedNetns(h *roles.Host, a *store.Attachment, ns *netops.Namespace, f func(*netops.Namespace) error) error {
	if a.Netns.Inode != 0 && (ns == nil || !IsRecorded(ns, a.Netns)) {
		var err error
		if ns, err = OpenRecorded(h, a.Netns); err != nil {
			return err
		}
		if ns != nil {
			defer ns.Close()
		}
	}
	return f(ns)
}

// RemovePart removes the i-th part of a recorded attachment. It runs the part's inverses,
// then deletes the claims and the part in one transaction, and with the last part the
// record. The leases stay, because they belong to the interface. The caller holds the
// attachment's lock. RemovePart updates a.
func RemovePart(ctx context.Context, h *roles.Host, a *store.Attachment, i int, ns *netops.Namespace) error {
	handed := false
	err := undoParts(ctx, h, a, a.Parts[i:i+1], ns, func(bool) error {
		claims := a.Parts[i].Claims
		a.Parts = slices.Delete(slices.Clone(a.Parts), i, i+1)
		a.Updated = h.Now()
		return h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) (err error) {
			if len(a.Parts) == 0 {
				claims = nil // all
			}
			if len(claims) > 0 || len(a.Parts) == 0 {
				if handed, err = unclaim(tx, h, a.Key, claims...); err != nil {
					return err
				}
			}
			if len(a.Parts) > 0 {
				return tx.PutAttachment(a)
			}
			return tx.DeleteAttachment(a.Key)
		})
	})
	restoreHanded(ctx, h, handed)
	return err
}

// DeleteRecord deletes leases, claims and the record of an attachment.
func DeleteRecord(ctx context.Context, h *roles.Host, key store.Key) error {
	handed, err := deleteRecord(ctx, h, key)
	restoreHanded(ctx, h, handed)
	return err
}

// deleteRecord is DeleteRecord without restoreHanded.
func deleteRecord(ctx context.Context, h *roles.Host, key store.Key) (handed bool, err error) {
	err = h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) (err error) {
		if _, err := tx.DeleteLeases(key); err != nil {
			return err
		}
		if handed, err = unclaim(tx, h, key); err != nil {
			return err
		}
		return tx.DeleteAttachment(key)
	})
	return handed, err
}

// unclaim releases an attachment's claims, and reports whether another attachment of its container got ports of it.
func unclaim(tx *store.Tx, h *roles.Host, key store.Key, kinds ...string) (handed bool, err error) {
	if err := tx.Unclaim(key, kinds...); err != nil {
		return false, err
	}
	return tx.HandOver(key, h.Now())
}

// TakeFree gives the ports that attachments of a container await and that nobody has to them: their holder can
// have released them before they were awaited. It also makes the elements of ports that they have, because a call that gave
// them the ports can have been killed.
func TakeFree(ctx context.Context, h *roles.Host, containerID string) error {
	some, err := store.Read(ctx, h.Store, func(tx *store.Tx) (bool, error) { return tx.Awaits(containerID), nil })
	if err != nil || !some {
		return err
	}
	handed := false
	err = h.Store.Update(ctx, func(tx *store.Tx) (err error) {
		handed, err = tx.HandOver(store.Key{ContainerID: containerID}, h.Now())
		return err
	})
	restoreHanded(ctx, h, handed)
	return err
}

// restoreHanded makes the elements of the attachments that got ports: until then they are on standby. The caller holds
// no lock of restored objects.
func restoreHanded(ctx context.Context, h *roles.Host, handed bool) {
	if !handed {
		return
	}
	if _, err := h.Net.RestoreRules(context.WithoutCancel(ctx)); err != nil {
		h.Log.Warn("the ports of a container are not forwarded to its other network: run 'cnibox repair'", "error", err)
	}
}

// Reap removes every attachment of a network ("" for all) that is certainly dead (see
// Census.Dead), and leases without an attachment if their namespace is gone. It returns
// the number of freed addresses. It skips an attachment that another process works on.
func Reap(ctx context.Context, h *roles.Host, network string) (freed int, err error) {
	dead, leases, err := deadOwners(ctx, h, network, (*Census).Dead)
	if err != nil {
		return 0, err
	}
	owned := map[store.Key]int{}
	for _, l := range leases {
		owned[l.Owner]++
	}
	var errs []error
	for key, isDead := range dead {
		if !isDead {
			continue
		}
		removed, err := RemoveIf(ctx, h, key, deadNow)
		errs = append(errs, err)
		if removed {
			freed += owned[key]
			h.Log.Info("reaped dead attachment", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName)
		}
	}
	return freed, errors.Join(errs...)
}

// AnyDead reports whether Reap would free an address of a network. It changes nothing. It
// locks no attachment, so another process may work on the dead one.
func AnyDead(ctx context.Context, h *roles.Host, network string) (bool, error) {
	dead, leases, err := deadOwners(ctx, h, network, (*Census).Dead)
	return slices.ContainsFunc(leases, func(l store.Lease) bool { return dead[l.Owner] }), err
}

// Collect removes the attachments and leases of all networks whose namespaces certainly do
// not exist, if their keys are in before. It returns the keys of all of them, and the
// number of those that it removed. Nobody asked for it, so it is stricter than Reap: an
// attachment whose namespace is not visible from here is alive, even without its host link.
func Collect(ctx context.Context, h *roles.Host, before map[store.Key]bool) (gone map[store.Key]bool, removed int, err error) {
	gone, _, err = deadOwners(ctx, h, "", (*Census).gone)
	errs := []error{err}
	for key, isGone := range gone {
		if !isGone || !before[key] {
			continue
		}
		done, err := RemoveIf(ctx, h, key, deadNow)
		errs = append(errs, err)
		if done && err == nil {
			removed++
			h.Log.Warn("a container does not exist and its runtime did not delete it: its attachment was collected", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName)
		}
	}
	return gone, removed, errors.Join(errs...)
}

// gone reports whether an attachment is dead and its namespace does not exist.
func (c *Census) gone(a *store.Attachment) bool { return c.Dead(a) && c.NetnsGone(a.Netns) }

// deadOwners returns which attachments of a network, and which owners of leases without
// an attachment, are dead. It returns the network's leases too.
func deadOwners(ctx context.Context, h *roles.Host, network string, isDead func(*Census, *store.Attachment) bool) (map[store.Key]bool, []store.Lease, error) {
	var atts []store.Attachment
	var leases []store.Lease
	err := h.Store.View(ctx, func(tx *store.Tx) (err error) {
		if atts, err = tx.Attachments(network); err != nil {
			return err
		}
		leases, err = Leases(tx, network)
		return err
	})
	if err != nil || len(atts)+len(leases) == 0 {
		return nil, nil, err
	}
	census, err := NewCensus(ctx, h)
	if err != nil {
		return nil, nil, err
	}
	dead, known := map[store.Key]bool{}, map[store.Key]bool{}
	for i := range atts {
		known[atts[i].Key] = true
		dead[atts[i].Key] = isDead(census, &atts[i])
	}
	for _, l := range leases {
		if !known[l.Owner] && !l.Imported {
			dead[l.Owner] = census.NetnsGone(l.Netns)
		}
	}
	return dead, leases, nil
}

// Found contains the stored data of one key.
type Found struct {
	// Attachment is nil if there is no record.
	Attachment *store.Attachment
	Leases     []store.Lease
}

// RemoveIf removes one attachment, or leases without an attachment, if condition returns
// true. It reads them under the attachment's lock, and does nothing if another process
// holds the lock.
func RemoveIf(ctx context.Context, h *roles.Host, key store.Key, condition func(context.Context, *roles.Host, Found) (bool, error)) (bool, error) {
	lock, ok, err := h.Store.TryLockAttachment(ctx, key)
	if err != nil || !ok {
		return false, err
	}
	defer lock.Unlock()
	var f Found
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		f.Attachment, err = tx.Attachment(key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		f.Leases, err = tx.LeasesOf(key)
		return err
	})
	if err != nil {
		return false, err
	}
	if yes, err := condition(ctx, h, f); err != nil || !yes {
		return false, err
	}
	if f.Attachment == nil {
		return true, DeleteRecord(ctx, h, key)
	}
	return true, Remove(ctx, h, f.Attachment, nil)
}

// deadNow repeats the check under the lock, because an ADD may have finished between the
// census and the lock.
func deadNow(ctx context.Context, h *roles.Host, f Found) (bool, error) {
	if a := f.Attachment; a != nil && a.HostLink != "" {
		l, err := h.Net.Link(ctx, nil, a.HostLink)
		if err != nil && !errors.Is(err, netops.ErrNotExist) || err == nil && isOurs(l, a.Key) {
			return false, err
		}
		return !netnsLives(a.Netns), nil
	}
	c := &Census{mount: MountNamespace()}
	if f.Attachment != nil {
		return c.Dead(f.Attachment), nil
	}
	for _, l := range f.Leases {
		if l.Imported || !c.NetnsGone(l.Netns) {
			return false, nil
		}
	}
	return true, nil
}

// Leases lists the leases of every pool of a network, or of all networks.
func Leases(tx *store.Tx, network string) (all []store.Lease, err error) {
	err = tx.EachPool(network, func(p *store.Pool) error {
		leases, err := store.Collect(p.Leases())
		all = append(all, leases...)
		return err
	})
	return all, err
}
