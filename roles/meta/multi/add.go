package multi

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// Add attaches the container to all its networks. When one fails, those that stand
// are taken back.
func (m *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	if err := m.ready(roles.ErrTryAgain); err != nil {
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
	if err := m.clearDead(ctx, h, req, ns); err != nil {
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
	c := m.course(h, req)
	asked := &store.Delegation{
		Owner: req.Key(), Pod: req.Pod(), Netns: record.ThisNetns(req.Netns, ns), BootID: h.Store.BootID(),
		Args: req.Args.String(), Path: c.req.Path, Delegates: all, Conf: req.Conf,
		Created: h.Now(), Updated: h.Now(), Program: h.Program,
	}
	if err := begin(ctx, h, asked, c.out); err != nil {
		return nil, errors.Join(err, forget(ctx, h, req.Key()))
	}
	if err := m.attach(ctx, c, asked, ns); err != nil {
		c.spare(asked.Delegates)
		return nil, errors.Join(err, m.takeBack(context.WithoutCancel(ctx), c, asked, ns))
	}
	c.publish(ctx, api)
	return c.result(req.IfName), nil
}

// attach runs the plugins of all networks, does what concerns them together, and
// records what came of it.
func (m *handler) attach(ctx context.Context, c *course, asked *store.Delegation, ns *netops.Namespace) error {
	if err := c.makeLinks(ctx, asked.Delegates); err != nil {
		return err
	}
	if err := c.add(ctx, asked.Delegates, m.conf.InOrder); err != nil {
		return err
	}
	if err := c.route(ctx, asked.Delegates, ns); err != nil {
		return err
	}
	status, err := c.status(asked.Delegates)
	if err != nil {
		return err
	}
	c.out.Status, c.out.State = status, store.Done
	return put(ctx, c.h, c.out)
}

// clearDead makes way for an ADD: what an interrupted call, a former life of the
// container or a former boot left is taken back; a living attachment is an error.
func (m *handler) clearDead(ctx context.Context, h *roles.Host, req *roles.Request, ns *netops.Namespace) error {
	asked, out, err := load(ctx, h, req.Key())
	if err != nil || asked == nil {
		return err
	}
	alive, err := isAlive(ctx, h, asked, out, ns)
	if err != nil {
		return err
	}
	if alive {
		return fmt.Errorf("%w: interface %q of container %q on network %q, since %s: run DEL first",
			roles.ErrAttached, req.IfName, req.ContainerID, req.Network, asked.Created.Format("2006-01-02 15:04:05"))
	}
	return m.takeBack(ctx, m.recorded(h, req, asked, out), asked, ns)
}

// isAlive tells whether recorded networks are those of this very container. Where it
// is not known what came of them, the state having been lost, the interface tells.
func isAlive(ctx context.Context, h *roles.Host, asked *store.Delegation, out *store.Delegated, ns *netops.Namespace) (bool, error) {
	dev, inode := ns.ID()
	if asked.BootID != h.Store.BootID() || asked.Netns.Dev != dev || asked.Netns.Inode != inode {
		return false, nil
	}
	if out != nil {
		return out.State == store.Done, nil
	}
	_, err := h.Net.Link(ctx, ns, asked.Owner.IfName)
	if errors.Is(err, netops.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// recorded is the course of recorded networks. It needs no configuration: what it
// was at ADD is recorded.
func (m *handler) recorded(h *roles.Host, req *roles.Request, asked *store.Delegation, out *store.Delegated) *course {
	c := m.course(h, req)
	if out != nil {
		c.out = out
	}
	c.recall(asked)
	return c
}

// takeBack detaches what is recorded and forgets it. What could not be detached
// stays recorded for the next call.
func (m *handler) takeBack(ctx context.Context, c *course, asked *store.Delegation, ns *netops.Namespace) error {
	c.out.State = store.Removing
	err := c.unroute(ctx, asked, ns)
	if !m.conf.InOrder && !stacked(asked.Delegates) {
		c.dropLinks(ctx, asked.Delegates, ns)
	}
	err = errors.Join(err, c.del(ctx, asked.Delegates, m.conf.InOrder))
	if err != nil {
		return errors.Join(err, put(ctx, c.h, c.out))
	}
	if err := c.h.Store.RemoveStatus(asked.Owner); err != nil {
		c.h.Log.Warn("the file of network-status stays", "error", err)
	}
	return c.releaseLinks(ctx, asked.Delegates, nil, func() error { return forget(ctx, c.h, asked.Owner) })
}
