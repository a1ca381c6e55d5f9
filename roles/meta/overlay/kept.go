package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netlist"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// inProcess tells whether all that the request's configuration names is done in
// process: then it is recorded where it is done.
func (c *Conf) inProcess(h *roles.Host, req *roles.Request) bool {
	ipam := "host-local"
	if raw, ok := c.IPAM["type"]; ok && json.Unmarshal(raw, &ipam) != nil {
		return false
	}
	return h.Delegate.InProcess(c.delegateType(), req) && h.Delegate.InProcess(ipam, req)
}

// keep records what another program is asked to do, before it is asked: the
// configuration or the node's subnet may be another one at DEL.
func (c *Conf) keep(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if c.inProcess(h, req) {
		return nil
	}
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	now := h.Now()
	return h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		return tx.PutDelegation(&store.Delegation{
			Owner: req.Key(), Pod: req.Pod(), Netns: record.ThisNetns(req.Netns, ns), BootID: h.Store.BootID(),
			Args: req.Args.String(), Path: req.Path, Created: now, Updated: now, Program: h.Program,
			Delegates: []store.Delegate{{IfName: req.IfName, Name: c.Name, List: req.Conf, Version: req.CNIVersion}},
		})
	})
}

// delKept has another program undo what it was asked to do, as it was asked.
func (c *Conf) delKept(ctx context.Context, h *roles.Host, req *roles.Request) (done bool, err error) {
	var kept *store.Delegation
	err = h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		kept, err = tx.Delegation(req.Key())
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, undo(ctx, h, req, kept)
}

// undo has the recorded delegates detach, and then forgets them.
func undo(ctx context.Context, h *roles.Host, req *roles.Request, kept *store.Delegation) error {
	for _, d := range kept.Delegates {
		l, err := netlist.Parse(d.List, d.Version)
		if err != nil {
			return fmt.Errorf("what was recorded of network %q: %w", d.Name, err)
		}
		if err := l.Del(ctx, h.Delegate, netlist.Call{Request: req, Result: req.PrevResult}); err != nil {
			return err
		}
	}
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDelegation(kept.Owner) })
	if errors.Is(err, store.ErrUnwritable) {
		h.Log.Warn("what was asked for stays on record, and is undone once more", "container", kept.Owner.ContainerID, "ifname", kept.Owner.IfName, "error", err)
		return nil
	}
	return err
}

// collectKept undoes what is recorded of this network's containers that have no
// valid attachment.
func (c *Conf) collectKept(ctx context.Context, h *roles.Host, req *roles.Request) error {
	var all []store.Delegation
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		all, err = tx.Delegations(c.Name)
		return err
	})
	errs := []error{err}
	for i := range all {
		k := all[i].Owner
		if req.IsValid(k.ContainerID, k.IfName) {
			continue
		}
		del := *req
		del.Verb, del.ContainerID, del.IfName, del.Netns, del.PrevResult, del.Valid = roles.Del, k.ContainerID, k.IfName, "", nil, nil
		if ns := record.OpenRecorded(h, all[i].Netns); ns != nil {
			del.Netns = all[i].Netns.Path
			errs = append(errs, ns.Close())
		}
		errs = append(errs, undo(ctx, h, &del, &all[i]))
	}
	return errors.Join(errs...)
}
