package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// GC detaches recorded containers that are not in the runtime's list. Then it runs GC of the
// plugins of every known network with the recorded attachments, because the runtime's list has the
// default network only.
func (m *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	before, _, err := allRecords(ctx, h)
	if err != nil {
		return err // the valid attachments are unknown
	}
	known, err := m.localNetworks(ctx)
	if err != nil {
		h.Log.Warn("cannot read all networks", "error", err)
	}
	var errs []error
	for i := range before {
		request := &before[i]
		known = append(known, request.Delegates...)
		if request.Owner.Network == req.Network && !req.IsValid(request.Owner.ContainerID, request.Owner.IfName) {
			errs = append(errs, m.collect(ctx, h, req, request.Owner))
		}
	}
	errs = append(errs, m.removeOrphans(ctx, h, req))
	former, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.DelegatedNetwork, error) { return tx.DelegatedNetworks(req.Network) })
	errs = append(errs, ignoreMissing(h, err))
	for _, n := range former {
		known = append(known, store.Delegate{Name: n.Network, List: n.List, Version: n.Version, HostLink: n.HostLink})
	}
	done := map[string]bool{}
	for i := range known {
		name := networkName(&known[i])
		if !done[name] {
			errs = append(errs, withNetwork(&known[i], m.collectNetwork(ctx, h, req, &known[i], before)))
		}
		done[name] = true
	}
	return errors.Join(errs...)
}

// collectNetwork runs GC of one network's plugins. No container is recorded with the network
// meanwhile, so the list is complete until the plugins have returned.
func (m *handler) collectNetwork(ctx context.Context, h *roles.Host, req *roles.Request, n *store.Delegate, before []store.Delegation) error {
	l, call, err := m.newRunner(h, req).list(n)
	if err != nil {
		return err
	}
	held, err := h.Store.LockShared(ctx, gcLock(l.Name), true)
	if err != nil {
		return err
	}
	defer held.Unlock()
	after, _, err := allRecords(ctx, h)
	if err != nil {
		return err
	}
	valid, err := validOf(ctx, h, req, l.Name, before, after)
	if err == nil {
		err = l.GC(ctx, h.Delegate, call, valid)
	}
	if err != nil || len(valid) > 0 {
		return err
	}
	return h.Store.Update(ctx, func(tx *store.Tx) error { return tx.DeleteDelegatedNetwork(req.Network, l.Name) })
}

// collect detaches one container, unless another process holds its lock.
func (m *handler) collect(ctx context.Context, h *roles.Host, req *roles.Request, key store.Key) error {
	held, ok, err := h.Store.TryLockShared(ctx, lockName(key), true)
	if err != nil || !ok {
		return err
	}
	defer held.Unlock()
	request, out, err := loadRecords(ctx, h, key)
	if err != nil || request == nil {
		return err
	}
	del := *req
	del.Verb, del.ContainerID, del.IfName, del.Netns, del.Valid = roles.Del, key.ContainerID, key.IfName, "", nil
	if err := m.detachAll(ctx, m.recordedRunner(h, &del, request, out), request, nil); err != nil {
		return fmt.Errorf("collect %q of container %q: %w", key.IfName, key.ContainerID, err)
	}
	h.Log.Info("collected", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName)
	return nil
}

// removeOrphans removes the results of containers whose record of the requested networks was lost.
func (m *handler) removeOrphans(ctx context.Context, h *roles.Host, req *roles.Request) error {
	var orphans []store.Key
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.AllDelegated()
		for _, d := range all {
			if d.Owner.Network == req.Network && !req.IsValid(d.Owner.ContainerID, d.Owner.IfName) {
				orphans = append(orphans, d.Owner)
			}
		}
		return ignoreMissing(h, err)
	})
	errs := []error{err}
	for _, key := range orphans {
		held, ok, err := h.Store.TryLockShared(ctx, lockName(key), true)
		if err != nil || !ok {
			errs = append(errs, err)
			continue
		}
		request, out, err := loadRecords(ctx, h, key)
		if err == nil && request == nil {
			err = errors.Join(m.removeUnrecorded(ctx, h, key.ContainerID, out), deleteRecords(ctx, h, key))
		}
		errs = append(errs, err)
		held.Unlock()
	}
	return errors.Join(errs...)
}

// validOf returns the valid attachments of one network for GC. These are: the recorded ones; all
// interfaces of containers in the runtime's list, and of containers whose record was lost but which
// the state file knows; and attachments of other runtimes that use the network directly, unless their
// container no longer exists. The result is never nil.
func validOf(ctx context.Context, h *roles.Host, req *roles.Request, network string, before, after []store.Delegation) ([]roles.AttachmentID, error) {
	valid := []roles.AttachmentID{}
	for _, v := range req.Valid {
		recorded := func(d store.Delegation) bool { return d.Owner.ContainerID == v.ContainerID }
		if !slices.ContainsFunc(after, recorded) {
			valid = append(valid, v)
		}
	}
	for i := range after {
		for j := range after[i].Delegates {
			if n := &after[i].Delegates[j]; networkName(n) == network {
				valid = append(valid, roles.AttachmentID{ContainerID: after[i].Owner.ContainerID, IfName: n.IfName})
			}
		}
	}
	var others []store.Attachment
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		came, err := tx.AllDelegated()
		for _, d := range came {
			if !slices.ContainsFunc(after, func(r store.Delegation) bool { return r.Owner == d.Owner }) {
				for _, a := range d.Done {
					valid = append(valid, roles.AttachmentID{ContainerID: d.Owner.ContainerID, IfName: a.IfName})
				}
			}
		}
		if err = ignoreMissing(h, err); err != nil {
			return err
		}
		atts, err := tx.Attachments(network)
		for _, a := range atts {
			ours := func(d store.Delegation) bool { return d.Owner.ContainerID == a.ContainerID }
			if slices.ContainsFunc(req.Valid, func(v roles.AttachmentID) bool { return v.ContainerID == a.ContainerID }) {
				valid = append(valid, roles.AttachmentID{ContainerID: a.ContainerID, IfName: a.IfName})
			} else if !slices.ContainsFunc(before, ours) && !slices.ContainsFunc(after, ours) {
				others = append(others, a)
			}
		}
		return ignoreMissing(h, err)
	})
	if err != nil || len(others) == 0 {
		return valid, err
	}
	census, err := attachment.NewCensus(ctx, h)
	if err != nil {
		return nil, err
	}
	for i := range others {
		if !census.Dead(&others[i]) {
			valid = append(valid, roles.AttachmentID{ContainerID: others[i].ContainerID, IfName: others[i].IfName})
		}
	}
	return valid, nil
}

// listName returns the name in a network's configuration.
func listName(list []byte) (string, error) {
	var c struct {
		Name string `json:"name"`
	}
	err := coldjson.Unmarshal(list, &c)
	return c.Name, err
}
