package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// GC detaches what is recorded of this network and not in the runtime's list, and
// has the plugins of every network known collect what belongs to no attachment that
// is recorded then: the runtime's list names default networks only.
func (m *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	before, _, err := delegations(ctx, h)
	if err != nil {
		return err // who is valid is not known
	}
	known, err := m.local(ctx)
	if err != nil {
		h.Log.Warn("not all networks are known", "error", err)
	}
	var errs []error
	for i := range before {
		asked := &before[i]
		known = append(known, asked.Delegates...)
		if asked.Owner.Network == req.Network && !req.IsValid(asked.Owner.ContainerID, asked.Owner.IfName) {
			errs = append(errs, m.collect(ctx, h, req, asked.Owner))
		}
	}
	errs = append(errs, m.forgetOrphans(ctx, h, req))
	after, _, err := delegations(ctx, h)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	c := m.course(h, req)
	done := map[string]bool{}
	for i := range known {
		l, call, err := c.list(&known[i])
		if err != nil || done[l.Name] {
			errs = append(errs, named(&known[i], err))
			continue
		}
		done[l.Name] = true
		valid, err := validOf(ctx, h, req, l.Name, before, after)
		if err == nil {
			err = l.GC(ctx, h.Delegate, call, valid)
		}
		errs = append(errs, named(&known[i], err))
	}
	return errors.Join(errs...)
}

// collect detaches one container, unless another process works on it.
func (m *handler) collect(ctx context.Context, h *roles.Host, req *roles.Request, key store.Key) error {
	held, ok, err := h.Store.TryLockShared(ctx, lockName(key), true)
	if err != nil || !ok {
		return err
	}
	defer held.Unlock()
	asked, out, err := load(ctx, h, key)
	if err != nil || asked == nil {
		return err
	}
	del := *req
	del.Verb, del.ContainerID, del.IfName, del.Netns, del.Valid = roles.Del, key.ContainerID, key.IfName, "", nil
	if err := m.takeBack(ctx, m.recorded(h, &del, asked, out), asked, nil); err != nil {
		return fmt.Errorf("collect %q of container %q: %w", key.IfName, key.ContainerID, err)
	}
	h.Log.Info("collected", "network", key.Network, "container", key.ContainerID, "ifname", key.IfName)
	return nil
}

// forgetOrphans removes what came of networks of which nobody knows any more what was
// asked for: the record was lost.
func (m *handler) forgetOrphans(ctx context.Context, h *roles.Host, req *roles.Request) error {
	var orphans []store.Key
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		all, err := tx.AllDelegated()
		for _, d := range all {
			if d.Owner.Network == req.Network && !req.IsValid(d.Owner.ContainerID, d.Owner.IfName) {
				orphans = append(orphans, d.Owner)
			}
		}
		return missing(h, err)
	})
	errs := []error{err}
	for _, key := range orphans {
		held, ok, err := h.Store.TryLockShared(ctx, lockName(key), true)
		if err != nil || !ok {
			errs = append(errs, err)
			continue
		}
		asked, out, err := load(ctx, h, key)
		if err == nil && asked == nil {
			err = errors.Join(m.derive(ctx, h, key.ContainerID, out), forget(ctx, h, key))
		}
		errs = append(errs, err)
		held.Unlock()
	}
	return errors.Join(errs...)
}

// validOf are the valid attachments of one network: those recorded; those that the
// runtime knows and we do not, their record having been lost, with all interfaces that
// came of it, whatever network they are of; and those that somebody else made, a runtime that uses the network without us for instance, unless their
// container is gone. It is never nil.
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
		if err = missing(h, err); err != nil {
			return err
		}
		atts, err := tx.Attachments(network)
		for _, a := range atts {
			ours := func(d store.Delegation) bool { return d.Owner.ContainerID == a.ContainerID }
			if !slices.ContainsFunc(before, ours) && !slices.ContainsFunc(after, ours) {
				others = append(others, a)
			}
		}
		return missing(h, err)
	})
	if err != nil || len(others) == 0 {
		return valid, err
	}
	census, err := record.NewCensus(ctx, h)
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

// listName is the name in a network's configuration.
func listName(list []byte) (string, error) {
	var c struct {
		Name string `json:"name"`
	}
	err := coldjson.Unmarshal(list, &c)
	return c.Name, err
}
