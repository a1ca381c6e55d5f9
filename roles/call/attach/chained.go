package attach

import (
	"context"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/store"
)

// Chained is a chained role: it adjusts the interface that an earlier plugin of the list
// made.
type Chained interface {
	SpecBuilder
	// Wants reports whether the configuration requests an adjustment. If not, ADD passes
	// prevResult on, CHECK succeeds, and DEL undoes the part that was recorded before the
	// configuration was changed.
	Wants() bool
}

// ArgsReader is a Chained that can also get its settings from CNI_ARGS.
type ArgsReader interface {
	// WantedByArgs reports whether CNI_ARGS request an adjustment.
	WantedByArgs(args roles.Args) bool
}

// ChainedHandler answers the CNI verbs for a chained role.
type ChainedHandler struct {
	role Chained
	// name is the role's, under which its part is recorded.
	name string
}

// Builder returns the role, for tests.
func (c *ChainedHandler) Builder() SpecBuilder { return c.role }

// Add adjusts the attachment that prevResult describes. If Add fails, it undoes the
// role's own changes. The runtime's DEL of the whole list undoes the changes of other
// plugins.
func (c *ChainedHandler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (_ *roles.Result, err error) {
	defer func() {
		if err == nil { // else the role's first rules may never have been made
			restoreRules(ctx, h)
		}
	}()
	if err := c.chained(req); err != nil || !c.wants(req) {
		return req.PrevResult, err
	}
	ns, end, err := begin(ctx, h, req)
	if err != nil {
		return nil, err
	}
	defer end()
	w := &work{role: c.role, name: c.name, h: h, req: req, in: newInput(req), ns: ns}
	w.in.Chained, err = withInterfaces(ctx, h, req, ns)
	if err != nil {
		return nil, err
	}
	takeMACs(w.in, w.in.Chained, req.IfName)
	var found attachment.Found
	found, w.in.state, err = recovery.Find(ctx, h, req.Key())
	if err != nil {
		return nil, err
	}
	w.on, err = c.recordToExtend(ctx, h, found.Attachment, ns)
	if err != nil {
		return nil, err
	}
	err = w.build(ctx, store.Done)
	if err != nil && w.rec != nil {
		// A failed Apply has undone its own changes; the inverses run again in case this failed.
		err = errors.Join(err, attachment.RemovePart(context.WithoutCancel(ctx), h, w.rec, len(w.rec.Parts)-1, ns))
	}
	if err != nil {
		return nil, err
	}
	return w.made.desired.Result, nil
}

// wants reports whether the configuration or CNI_ARGS request an adjustment.
func (c *ChainedHandler) wants(req *roles.Request) bool {
	a, ok := c.role.(ArgsReader)
	return c.role.Wants() || ok && a.WantedByArgs(req.Args)
}

// chained returns an error if the request has no prevResult.
func (c *ChainedHandler) chained(req *roles.Request) error {
	if req.PrevResult != nil {
		return nil
	}
	return &roles.ConfError{Path: "prevResult", Reason: "is missing: " + c.name + " adjusts the interface of an earlier plugin, put it behind one in the list"}
}

// withInterfaces returns prevResult, with the container's interface, its host's end and that
// end's bridge as the kernel has them if the version is older than 0.3.0: its results have
// addresses only.
func withInterfaces(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) (*roles.Result, error) {
	if len(req.PrevResult.Interfaces) > 0 || result.AtLeast(req.CNIVersion, "0.3.0") {
		return req.PrevResult, nil
	}
	own, err := h.Net.Link(ctx, ns, req.IfName)
	if err != nil {
		return nil, err
	}
	all := []*roles.ResultInterface{{Name: own.Name, Mac: own.MAC, Sandbox: req.Netns}}
	end, err := h.Net.HostEnd(ctx, ns, req.IfName)
	switch {
	case errors.Is(err, netops.ErrNotExist):
		end = netops.LinkInfo{}
	case err != nil:
		return nil, err
	}
	for _, name := range []string{end.Name, end.Master} {
		if name != "" {
			all = slices.Insert(all, 0, &roles.ResultInterface{Name: name})
		}
	}
	out := *req.PrevResult
	out.Interfaces = all
	return &out, nil
}

// recordToExtend returns the record to which the role's part is added, or nil. It first
// removes the parts of interrupted calls of this role, and the whole record of an earlier
// container of the same ID. It keeps that container's addresses, because the new
// container may have them already.
func (c *ChainedHandler) recordToExtend(ctx context.Context, h *roles.Host, rec *store.Attachment, ns *netops.Namespace) (*store.Attachment, error) {
	if rec == nil {
		return nil, nil
	}
	dead, err := attachment.Replaced(ctx, h, rec, ns)
	if err != nil {
		return nil, err
	}
	for i := len(rec.Parts) - 1; i >= 0; i-- {
		p := rec.Parts[i]
		if dead || p.Role == c.name && p.State == store.Pending {
			if err := attachment.RemovePart(ctx, h, rec, i, ns); err != nil {
				return nil, err
			}
		}
	}
	if len(rec.Parts) == 0 {
		return nil, nil
	}
	return rec, nil
}

// Del undoes the role's newest part by its record. A list may have the role twice, and
// its plugins are deleted from the last to the first.
func (c *ChainedHandler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.Recorded != nil && !*req.Recorded {
		return nil // the newest part is another plugin's of the list
	}
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	req, err := withRecordedNetwork(ctx, h, req, c.name)
	if err != nil {
		return err
	}
	cleaner, cleans := c.role.(ReferenceCleaner)
	cleans = cleans && c.wants(req)
	if !cleans { // without a part no lock is needed
		if rec, err := recovery.Attachment(ctx, h, req.Key()); err != nil || c.newest(rec) < 0 {
			return err
		}
	}
	lock, err := h.Store.LockAttachment(ctx, req.Key())
	if err != nil {
		return err
	}
	defer lock.Unlock()
	rec, err := recovery.Attachment(ctx, h, req.Key())
	if err != nil {
		return err
	}
	ns, err := attachment.OpenIfPresent(h, req.Netns)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	if i := c.newest(rec); i >= 0 {
		return c.removePart(ctx, h, rec, i, ns)
	}
	if !cleans {
		return nil
	}
	return errors.Join(c.cleanReference(ctx, h, req, rec, ns, cleaner), attachment.TakeFree(ctx, h, req.ContainerID))
}

// cleanReference removes what an ADD without a record of the role left.
func (c *ChainedHandler) cleanReference(ctx context.Context, h *roles.Host, req *roles.Request, rec *store.Attachment, ns *netops.Namespace, cleaner ReferenceCleaner) error {
	in := newInput(req)
	in.Prev, in.Chained, in.Recorded = req.PrevResult, req.PrevResult, rec != nil
	if rec == nil {
		anothers, err := attachment.IsAnothers(ctx, h, req.Key(), ns)
		if err != nil {
			return err
		}
		if anothers {
			ns = nil
		}
		return cleaner.CleanReference(ctx, h, in, ns)
	}
	return attachment.InRecordedNetns(h, rec, ns, func(ns *netops.Namespace) error { return cleaner.CleanReference(ctx, h, in, ns) })
}

// removePart removes a part of this role. It locks the namespace if the role is a
// NetnsLocker.
func (c *ChainedHandler) removePart(ctx context.Context, h *roles.Host, rec *store.Attachment, i int, ns *netops.Namespace) error {
	if _, ok := c.role.(NetnsLocker); ok {
		alone, err := h.Store.LockShared(ctx, namespaceLock(rec.Netns.Dev, rec.Netns.Inode), true)
		if err != nil {
			return err
		}
		defer alone.Unlock()
	}
	return attachment.RemovePart(ctx, h, rec, i, ns)
}

// newest returns the index of the role's newest part, or -1.
func (c *ChainedHandler) newest(rec *store.Attachment) int {
	if rec == nil {
		return -1
	}
	for i := len(rec.Parts) - 1; i >= 0; i-- {
		if rec.Parts[i].Role == c.name {
			return i
		}
	}
	return -1
}

// Check compares the kernel with what ADD would make from prevResult.
func (c *ChainedHandler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := c.chained(req); err != nil || !c.wants(req) {
		return err
	}
	ns, err := openNamespace(h, req)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := recovery.Ensure(ctx, h); err != nil {
		return err
	}
	in := newInput(req)
	in.Prev, in.Chained = req.PrevResult, req.PrevResult
	takeMACs(in, req.PrevResult, req.IfName)
	if err := c.role.Observe(ctx, h, in, ns); err != nil {
		return err
	}
	w, err := c.role.Build(in)
	if err != nil {
		return err
	}
	missing, err := c.checkReference(ctx, h, req, in, ns, &w.Spec)
	if err != nil {
		return err
	}
	return compare(ctx, h, req, w.Spec, ns, missing)
}

// GC removes the role's parts of the network's attachments that are not in the runtime's
// list. If the list's interface role is one of ours, its GC has already removed these
// attachments. With an empty list and no attachment left, GC also removes the objects
// that the network's attachments share.
func (c *ChainedHandler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return gc(ctx, h, req, c.role, func(a *store.Attachment) error {
		if c.newest(a) < 0 {
			return nil
		}
		return collect(ctx, h, a.Key, c.name, func() error { return c.removeParts(ctx, h, a.Key) })
	}, c.collectReference)
}

// removeParts removes the role's parts of one attachment.
func (c *ChainedHandler) removeParts(ctx context.Context, h *roles.Host, key store.Key) error {
	rec, err := recovery.Attachment(ctx, h, key)
	for i := c.newest(rec); err == nil && i >= 0; i = c.newest(rec) {
		err = c.removePart(ctx, h, rec, i, nil)
	}
	return err
}

// Status returns the role's own status.
func (c *ChainedHandler) Status(ctx context.Context, h *roles.Host, _ *roles.Request) error {
	return status(ctx, h, c.role)
}

// Plan returns what Add would do. An empty req.Netns means an empty namespace.
func (c *ChainedHandler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	if err := c.chained(req); err != nil {
		return nil, err
	}
	if !c.wants(req) {
		return &roles.Plan{Result: req.PrevResult}, nil
	}
	in := newInput(req)
	in.Chained = req.PrevResult
	takeMACs(in, req.PrevResult, req.IfName)
	return plan(ctx, h, req, c.role, in)
}
