package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/store"
)

// inProcess reports whether all plugins of the configuration run in this process. They record the
// attachment themselves.
func (c *Conf) inProcess(h *roles.Host, req *roles.Request) bool {
	ipam := "host-local"
	if raw, ok := c.IPAM["type"]; ok && json.Unmarshal(raw, &ipam) != nil {
		return false
	}
	return h.Delegate.InProcess(c.delegateType(), req) && h.Delegate.InProcess(ipam, req)
}

// record stores the delegate's configuration before a third-party plugin is called. At DEL the
// configuration or the node's subnet may have changed.
func (c *Conf) record(ctx context.Context, h *roles.Host, req *roles.Request) error {
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
			Owner: req.Key(), Pod: req.Pod(), Netns: attachment.ThisNetns(req.Netns, ns), BootID: h.Store.BootID(),
			Args: req.Args.String(), Path: req.Path, Created: now, Updated: now, Program: h.Program,
			Delegates: []store.Delegate{{IfName: req.IfName, Name: c.Name, List: req.Conf, Version: req.CNIVersion}},
		})
	})
}

// delRecorded runs DEL of a third-party plugin with the configuration of its ADD.
func (c *Conf) delRecorded(ctx context.Context, h *roles.Host, req *roles.Request) (done bool, err error) {
	kept, err := store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) (*store.Delegation, error) { return tx.Delegation(req.Key()) })
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, undo(ctx, h, req, kept)
}

// undo runs DEL of the recorded delegates and then deletes the record.
func undo(ctx context.Context, h *roles.Host, req *roles.Request, kept *store.Delegation) error {
	for _, d := range kept.Delegates {
		l, err := netlist.Parse(d.List, d.Version)
		if err != nil {
			return fmt.Errorf("read the record of network %q: %w", d.Name, err)
		}
		if err := l.Del(ctx, h.Delegate, netlist.Call{Request: req, Result: req.PrevResult}); err != nil {
			return err
		}
	}
	err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDelegation(kept.Owner) })
	if errors.Is(err, store.ErrUnwritable) {
		h.Log.Warn("cannot delete the record; DEL will run again", "container", kept.Owner.ContainerID, "ifname", kept.Owner.IfName, "error", err)
		return nil
	}
	return err
}

// gcRecorded undoes the recorded delegates of this network's containers that have no valid
// attachment.
func (c *Conf) gcRecorded(ctx context.Context, h *roles.Host, req *roles.Request) error {
	all, err := store.ReadKeep(ctx, h.Store, func(tx *store.KeepTx) ([]store.Delegation, error) { return tx.Delegations(c.Name) })
	errs := []error{err}
	for i := range all {
		k := all[i].Owner
		if req.IsValid(k.ContainerID, k.IfName) {
			continue
		}
		del := *req
		del.Verb, del.ContainerID, del.IfName, del.Netns, del.PrevResult, del.Valid = roles.Del, k.ContainerID, k.IfName, "", nil, nil
		ns, err := attachment.OpenRecorded(h, all[i].Netns)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ns != nil {
			del.Netns = all[i].Netns.Path
			errs = append(errs, ns.Close())
		}
		errs = append(errs, undo(ctx, h, &del, &all[i]))
	}
	return errors.Join(errs...)
}
