package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Del removes an attachment by its record, or without a record by the names derived from
// its key. It deletes first the link, then the address, then the record, so an address is
// never free while it is in use.
func (a *Handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	req, err := withRecordedNetwork(ctx, h, req, a.name)
	if err != nil {
		return err
	}
	lock, err := h.Store.LockAttachment(ctx, req.Key())
	if err != nil {
		return err
	}
	defer lock.Unlock()
	ns, err := attachment.OpenIfPresent(h, req.Netns)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	return a.remove(ctx, h, req, ns)
}

// remove does DEL's work under the attachment's lock. It continues to undo after errors.
// It releases the address only if everything was undone, and then deletes the record.
func (a *Handler) remove(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	rec, err := recovery.Attachment(ctx, h, req.Key())
	if err != nil {
		return err
	}
	if a.overLink(h) {
		if err := a.release(ctx, h, req, rec); err != nil {
			return err // the interface is needed to try again
		}
	}
	if rec != nil {
		err = attachment.UndoParts(ctx, h, rec, ns)
		if recovery.RebuiltPart(rec) != nil { // of what the kernel has
			err = errors.Join(err, h.Net.Remove(ctx, a.orphans(req), ns))
		}
	} else {
		spec := netops.Spec{Objects: append(orphanNeighbours(ctx, h, a.newInput(req)), a.orphans(req).Objects...)}
		err = errors.Join(a.cleanReference(ctx, h, req, ns), h.Net.Remove(ctx, spec, ns))
	}
	if err != nil {
		return err // the address may be in use: keep it until the next DEL
	}
	if a.ipam != "" && !a.overLink(h) {
		if err := a.release(ctx, h, req, rec); err != nil {
			return err
		}
	}
	if rec != nil {
		if err := attachment.DeleteRecord(ctx, h, req.Key()); err != nil {
			return err
		}
	}
	return a.removeShared(ctx, h, req.Network)
}

// release calls the IPAM plugin's DEL. If the plugin is not installed, and the attachment
// has neither a record nor prevResult, then ADD failed because the plugin was missing.
// The attachment has no addresses, and an error would make every DEL fail.
func (a *Handler) release(ctx context.Context, h *roles.Host, req *roles.Request, rec *store.Attachment) error {
	err := h.Delegate.Del(ctx, a.ipam, req)
	if errors.Is(err, roles.ErrNoPlugin) && rec == nil && req.PrevResult == nil {
		h.Log.Warn("release no addresses: the IPAM plugin is not installed", "network", req.Network, "container", req.ContainerID, "ifname", req.IfName, "error", err)
		return nil
	}
	return err
}

// removeShared removes the objects that the network's attachments share, if no attachment
// is left and the role's configuration permits it.
func (a *Handler) removeShared(ctx context.Context, h *roles.Host, network string) error {
	u, ok := a.role.(SharedRemover)
	if !ok {
		return nil
	}
	ours := u.RemovableShared()
	if len(ours) == 0 {
		return nil
	}
	if err := attachment.RemoveUnused(ctx, h, network, a.role.Shared(), ours); err != nil {
		return fmt.Errorf("remove shared objects of network %q: %w", network, err)
	}
	return nil
}

// orphans returns the objects that an attachment without a record can have left: those of
// an OrphanFinder, or the host link, found by name and label.
func (a *Handler) orphans(req *roles.Request) netops.Spec {
	in := a.newInput(req)
	if s, ok := a.role.(OrphanFinder); ok {
		return s.Orphans(in)
	}
	return netops.Spec{Objects: []netops.Object{ // of any kind of pair: the label identifies the link
		&netops.Link{In: netops.Host, Name: in.HostLink, Kind: Veth.Kind(), Alias: in.Label},
	}}
}

// orphanNeighbours returns the neighbour entries of the addresses in the alias of the host link of
// an attachment without a record.
func orphanNeighbours(ctx context.Context, h *roles.Host, in *Input) []netops.Object {
	l, err := h.Net.Link(ctx, nil, in.HostLink)
	if err != nil {
		return nil // then DEL finds no link either, or reports the error
	}
	info, ok := attachment.ParseAlias(l.Alias)
	if !ok || info.Label != in.Label {
		return nil
	}
	return attachment.Neighbours(l.Master, in.ContainerMAC, info.Addresses, true)
}

// GC removes the network's attachments that are not in the runtime's list, and calls the
// IPAM plugin's GC. With an empty list and no attachment left, it also removes the
// objects that the network's attachments share.
func (a *Handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return gc(ctx, h, req, a.role, func(old *store.Attachment) error {
		del := *req
		del.Verb, del.ContainerID, del.IfName, del.Netns, del.PrevResult = roles.Del, old.ContainerID, old.IfName, "", nil
		return collect(ctx, h, old.Key, a.name, func() error { return a.remove(ctx, h, &del, nil) })
	}, func(ctx context.Context, h *roles.Host, req *roles.Request) error {
		errs := []error{a.collectReference(ctx, h, req), a.removeStrays(ctx, h)}
		if a.ipam != "" {
			errs = append(errs, h.Delegate.GC(ctx, a.ipam, req))
		}
		return errors.Join(append(errs, a.removeShared(ctx, h, req.Network))...) // a killed DEL may not have removed them
	})
}

// gc calls remove with the network's attachments that are not in the runtime's list. It
// removes links without a record, calls more, and with an empty list removes the shared
// objects.
func gc(ctx context.Context, h *roles.Host, req *roles.Request, role SpecBuilder, remove func(*store.Attachment) error, more func(context.Context, *roles.Host, *roles.Request) error) error {
	defer restoreRules(ctx, h)
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	atts, err := recovery.Invalid(ctx, h, req)
	if err != nil {
		return err
	}
	var errs []error
	for i := range atts {
		errs = append(errs, remove(&atts[i]))
	}
	errs = append(errs, recovery.RemoveOrphans(ctx, h, req.Network, req.Valid), more(ctx, h, req))
	if len(req.Valid) == 0 {
		errs = append(errs, attachment.RemoveShared(ctx, h, req.Network, role.Shared()))
	}
	return errors.Join(errs...)
}

// collect calls remove for one attachment, unless another process works on it.
func collect(ctx context.Context, h *roles.Host, key store.Key, role string, remove func() error) error {
	lock, ok, err := h.Store.TryLockAttachment(ctx, key)
	if err != nil || !ok {
		return err
	}
	defer lock.Unlock()
	if err := remove(); err != nil {
		return fmt.Errorf("collect %s of container %q, interface %q: %w", role, key.ContainerID, key.IfName, err)
	}
	h.Log.Info("collected", "role", role, "network", key.Network, "container", key.ContainerID, "ifname", key.IfName)
	return nil
}
