package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Del detaches the container from all networks recorded at ADD, also if Multus recorded them. It does not depend on the present
// annotations, networks and configuration. A network that fails stays recorded, and the next DEL
// detaches only that one.
func (m *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	held, err := lock(ctx, h, req.Key())
	if err != nil {
		return err
	}
	defer held.Unlock()
	request, out, took, err := m.multusRecords(ctx, h, req)
	if err != nil {
		return err
	}
	if request == nil {
		return errors.Join(m.removeUnrecorded(ctx, h, req.ContainerID, out), ignoreMissing(h, deleteRecords(ctx, h, req.Key())))
	}
	ns, err := attachment.OpenIfPresent(h, req.Netns)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	err = m.detachAll(ctx, m.recordedRunner(h, req, request, out), request, ns)
	if err == nil && took != nil {
		err = took.forget(m.conf.CNIDir)
	}
	return err
}

// removeUnrecorded removes a container's attachments from the state file if the record of the
// requested networks was lost. It finds them by the interfaces in out, if these are known, and by
// the networks of this configuration. Those in another record stay.
func (m *handler) removeUnrecorded(ctx context.Context, h *roles.Host, containerID string, out *store.Delegated) error {
	var came []store.Answer
	if out != nil {
		came = out.Done
	}
	all, err := m.localNetworks(ctx)
	if err != nil {
		h.Log.Warn("cannot read all networks", "error", err)
	}
	recorded, _, err := allRecords(ctx, h)
	if err != nil {
		h.Log.Warn("cannot read the records of other networks", "error", err)
	}
	others := map[store.Key]bool{}
	for i := range recorded {
		for _, n := range recorded[i].Delegates {
			others[store.Key{Network: networkName(&n), ContainerID: recorded[i].Owner.ContainerID, IfName: n.IfName}] = true
		}
	}
	var keys []store.Key
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			if a.ContainerID == containerID && !others[a.Key] &&
				(slices.ContainsFunc(came, func(n store.Answer) bool { return n.IfName == a.IfName }) ||
					slices.ContainsFunc(all, func(n store.Delegate) bool { return networkName(&n) == a.Network })) {
				keys = append(keys, a.Key)
			}
		}
		return err
	})
	errs := []error{ignoreMissing(h, err)}
	for _, key := range keys {
		_, err := attachment.RemoveIf(ctx, h, key, func(context.Context, *roles.Host, attachment.Found) (bool, error) { return true, nil })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check compares every network with the result of its ADD.
func (m *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is missing: CHECK needs the result of ADD"}
	}
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	request, out, _, err := m.multusRecords(ctx, h, req)
	if err != nil {
		return err
	}
	if request == nil {
		return fmt.Errorf("%w: there is no record of interface %q of container %q", roles.ErrCheck, req.IfName, req.ContainerID)
	}
	c := m.recordedRunner(h, req, request, out)
	if c.result(req.IfName) == nil {
		if err := c.setResult(req.IfName, req.PrevResult); err != nil {
			return err
		}
	}
	var errs []error
	for i := range request.Delegates {
		n := &request.Delegates[i]
		errs = append(errs, withNetwork(n, c.check(ctx, n, ns)))
	}
	return errors.Join(append(errs, c.checkRoutes(ctx, ns))...)
}

// check compares one network. If its result was lost with the state file, only the interface must
// exist.
func (c *runner) check(ctx context.Context, n *store.Delegate, ns *netops.Namespace) error {
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

// networkName returns the name in a network's configuration, or "".
func networkName(n *store.Delegate) string {
	name, _ := listName(n.List)
	return name
}
