package multi

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Add attaches the container to all its networks. If one network fails, Add detaches the others
// again.
func (m *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	if err := m.checkReady(roles.ErrTryAgain); err != nil {
		return nil, err
	}
	ns, err := h.Net.OpenNamespace(req.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	defer ns.Close()
	held, err := lock(ctx, h, req.Key())
	if err != nil {
		return nil, err
	}
	defer held.Unlock()
	if err := m.removeStale(ctx, h, req, ns); err != nil {
		return nil, err
	}
	api, err := m.api()
	if err != nil {
		return nil, err
	}
	all, err := m.resolve(ctx, req, api)
	if err != nil {
		return nil, err
	}
	c := m.newRunner(h, req)
	request := &store.Delegation{
		Owner: req.Key(), Pod: req.Pod(), Netns: attachment.ThisNetns(req.Netns, ns), BootID: h.Store.BootID(),
		Args: req.Args.String(), Path: c.req.Path, Delegates: all, Conf: req.Conf,
		Created: h.Now(), Updated: h.Now(), Program: h.Program,
	}
	if err := recordRequest(ctx, h, request, all, c.out); err != nil {
		return nil, errors.Join(err, deleteRecords(ctx, h, req.Key()))
	}
	if err := m.attach(ctx, c, request, ns); err != nil {
		c.skipUnbegun(request.Delegates)
		return nil, errors.Join(err, m.detachAll(context.WithoutCancel(ctx), c, request, ns))
	}
	c.publish(ctx, api)
	return c.result(req.IfName), nil
}

// attach runs ADD of all networks, makes the routes that concern several networks, and records the
// result.
func (m *handler) attach(ctx context.Context, c *runner, request *store.Delegation, ns *netops.Namespace) error {
	if err := c.makeHostLinks(ctx, request.Delegates); err != nil {
		return err
	}
	if err := c.add(ctx, request.Delegates, m.conf.InOrder); err != nil {
		return err
	}
	if err := c.route(ctx, request.Delegates, ns); err != nil {
		return err
	}
	status, err := c.status(request.Delegates)
	if err != nil {
		return err
	}
	c.out.Status, c.out.State = status, store.Done
	return recordOutcome(ctx, c.h, c.out)
}

// removeStale removes what an interrupted call, an earlier container with this ID or an earlier
// boot left. An attachment that still exists is an error.
func (m *handler) removeStale(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	request, out, err := loadRecords(ctx, h, req.Key())
	if err != nil || request == nil {
		return err
	}
	alive, err := isAlive(ctx, h, request, out, ns)
	if err != nil {
		return err
	}
	if alive {
		return fmt.Errorf("%w: interface %q of container %q on network %q, since %s: run DEL first",
			roles.ErrAttached, req.IfName, req.ContainerID, req.Network, request.Created.Format("2006-01-02 15:04:05"))
	}
	return m.detachAll(ctx, m.recordedRunner(h, req, request, out), request, ns)
}

// isAlive reports whether the recorded networks belong to this container. If the result of ADD was
// lost with the state file, the existence of the interface decides.
func isAlive(ctx context.Context, h *roles.Host, request *store.Delegation, out *store.Delegated, ns *netops.Namespace) (bool, error) {
	dev, inode := ns.ID()
	if request.BootID != h.Store.BootID() || request.Netns.Dev != dev || request.Netns.Inode != inode {
		return false, nil
	}
	if out != nil {
		return out.State == store.Done, nil
	}
	_, err := h.Net.Link(ctx, ns, request.Owner.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// recordedRunner returns a runner for recorded networks. It uses the recorded settings of ADD and
// does not need the present configuration.
func (m *handler) recordedRunner(h *roles.Host, req *roles.Request, request *store.Delegation, out *store.Delegated) *runner {
	c := m.newRunner(h, req)
	if out != nil {
		c.out = out
	}
	c.restoreArgs(request)
	return c
}

// detachAll detaches the recorded networks and deletes the record. A network that cannot be
// detached stays recorded for the next call.
func (m *handler) detachAll(ctx context.Context, c *runner, request *store.Delegation, ns *netops.Namespace) error {
	c.out.State = store.Removing
	err := c.unroute(ctx, request, ns)
	if !m.conf.InOrder && !usesLinkInContainer(request.Delegates) {
		c.dropLinks(ctx, request.Delegates, ns)
	}
	err = errors.Join(err, c.del(ctx, request.Delegates, m.conf.InOrder))
	if err != nil {
		return errors.Join(err, recordOutcome(ctx, c.h, c.out))
	}
	if err := c.h.Store.RemoveStatus(request.Owner); err != nil {
		c.h.Log.Warn("cannot remove the network-status file", "error", err)
	}
	return c.releaseHostLinks(ctx, request.Delegates, nil, func() error { return deleteRecords(ctx, c.h, request.Owner) })
}
