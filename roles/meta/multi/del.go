package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// Del detaches the container from all that was recorded at ADD, whatever
// annotations, networks and configuration are by now. What failed stays recorded, and
// the next DEL does that alone.
func (m *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	held, err := lock(ctx, h, req.Key())
	if err != nil {
		return err
	}
	defer held.Unlock()
	asked, out, err := load(ctx, h, req.Key())
	if err != nil {
		return err
	}
	if asked == nil {
		return errors.Join(m.derive(ctx, h, req.ContainerID, out), missing(h, forget(ctx, h, req.Key())))
	}
	var ns *netops.Namespace
	if req.Netns != "" {
		if ns, err = h.Net.OpenNamespace(req.Netns); err != nil {
			h.Log.Debug("namespace is gone, going on without it", "error", err)
		} else {
			defer ns.Close()
		}
	}
	return m.takeBack(ctx, m.recorded(h, req, asked, out), asked, ns)
}

// derive removes, where what was asked for is not recorded any more, what the state
// file has of the container: by the interfaces that came of it, where that is known,
// and on networks that this configuration names.
func (m *handler) derive(ctx context.Context, h *roles.Host, containerID string, out *store.Delegated) error {
	var came []store.Answer
	if out != nil {
		came = out.Done
	}
	all, err := m.local(ctx)
	if err != nil {
		h.Log.Warn("not all networks are known", "error", err)
	}
	var keys []store.Key
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			if a.ContainerID == containerID &&
				(slices.ContainsFunc(came, func(n store.Answer) bool { return n.IfName == a.IfName }) ||
					slices.ContainsFunc(all, func(n store.Delegate) bool { return networkName(&n) == a.Network })) {
				keys = append(keys, a.Key)
			}
		}
		return err
	})
	errs := []error{missing(h, err)}
	for _, key := range keys {
		_, err := record.RemoveIf(ctx, h, key, func(context.Context, *roles.Host, record.Found) (bool, error) { return true, nil })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check compares every network with what its ADD brought.
func (m *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is missing: CHECK compares with what ADD returned"}
	}
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	asked, out, err := load(ctx, h, req.Key())
	if err != nil {
		return err
	}
	if asked == nil {
		return fmt.Errorf("%w: nothing is recorded of interface %q of container %q", roles.ErrCheck, req.IfName, req.ContainerID)
	}
	c := m.recorded(h, req, asked, out)
	if c.result(req.IfName) == nil {
		if err := c.took(req.IfName, req.PrevResult); err != nil {
			return err
		}
	}
	var errs []error
	for i := range asked.Delegates {
		n := &asked.Delegates[i]
		errs = append(errs, named(n, c.check(ctx, n, ns)))
	}
	return errors.Join(append(errs, c.checkRoutes(ctx, ns))...)
}

// check compares one network. Where its result is not known, the state having been
// lost, the interface has to be there at least.
func (c *course) check(ctx context.Context, n *store.Delegate, ns *netops.Namespace) error {
	l, call, err := c.list(n)
	if err != nil {
		return err
	}
	if call.Result != nil {
		return l.Check(ctx, c.h.Delegate, call)
	}
	if _, err := c.h.Net.Link(ctx, ns, n.IfName); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrCheck, err)
	}
	return nil
}

// networkName is the name of a network's configuration, "" where it has none.
func networkName(n *store.Delegate) string {
	name, _ := listName(n.List)
	return name
}
