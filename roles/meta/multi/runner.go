package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/store"
)

// runner runs the plugins of recorded networks for one call.
type runner struct {
	h   *roles.Host
	req *roles.Request
	// out is the result so far.
	out *store.Delegated
	// begun has the interfaces whose ADD began in this call.
	begun map[string]bool
	// mu guards out and begun.
	mu sync.Mutex
}

func (m *handler) newRunner(h *roles.Host, req *roles.Request) *runner {
	as := *req
	if m.conf.BinDir != "" {
		as.Path = append([]string{m.conf.BinDir}, req.Path...)
	}
	return &runner{h: h, req: &as, begun: map[string]bool{}, out: &store.Delegated{Owner: req.Key(), State: store.Pending}}
}

// parse returns a recorded network without fused lists. The requests for the network concern
// each plugin, so multi runs the plugins of a fused list itself.
func parse(d *store.Delegate) (*netlist.List, error) {
	l, err := netlist.Parse(d.List, d.Version)
	if err != nil {
		return nil, err
	}
	return l.Unfused(), nil
}

// list returns a recorded network and the parameters for its plugins.
func (c *runner) list(d *store.Delegate) (*netlist.List, netlist.Call, error) {
	l, err := parse(d)
	req := *c.req
	if d.IfName != req.IfName {
		req.Secondary = d.Name
	}
	req.IfName, req.PrevResult, req.Valid, req.Multi = d.IfName, nil, nil, true
	return l, netlist.Call{Request: &req, Runtime: d.Runtime, Args: d.Args, Device: d.Device, Master: d.HostLink, NoIPAM: d.NoIPAM, Result: c.result(d.IfName)}, err
}

// restoreArgs adds the recorded CNI_ARGS and CNI_PATH of ADD. A DEL without them, such as GC's,
// must find the same plugins.
func (c *runner) restoreArgs(request *store.Delegation) {
	if args, err := roles.ParseArgs(request.Args); err == nil {
		c.req.Args = args
	}
	for _, dir := range request.Path {
		if !slices.Contains(c.req.Path, dir) {
			c.req.Path = append(slices.Clip(c.req.Path), dir)
		}
	}
}

// answer returns the recorded result of a network's ADD, or nil.
func (c *runner) answer(ifName string) *store.Answer {
	i := slices.IndexFunc(c.out.Done, func(a store.Answer) bool { return a.IfName == ifName })
	if i < 0 {
		return nil
	}
	return &c.out.Done[i]
}

// result returns a network's result, or nil if it is unknown or cannot be decoded.
func (c *runner) result(ifName string) *roles.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.answer(ifName)
	if a == nil {
		return nil
	}
	r, err := result.DecodePrev(roles.ResultVersion, a.Result)
	if err != nil {
		c.h.Log.Warn("recorded result is ignored", "ifname", ifName, "error", err)
	}
	return r
}

// setResult stores a network's result.
func (c *runner) setResult(ifName string, r *roles.Result) error {
	raw, err := result.Encode(r, roles.ResultVersion)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.answer(ifName); a != nil {
		a.Result = raw
		return nil
	}
	c.out.Done = append(c.out.Done, store.Answer{IfName: ifName, Result: raw})
	return nil
}

// markBegun notes that a network's ADD began.
func (c *runner) markBegun(ifName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun[ifName] = true
}

// skipUnbegun excludes networks whose ADD did not begin from DEL. Some plugins fail at DEL of an
// unknown attachment, and the runtime would repeat DEL forever.
func (c *runner) skipUnbegun(all []store.Delegate) {
	for i := range all {
		if !c.begun[all[i].IfName] {
			c.markGone(all[i].IfName)
		}
	}
}

// markGone notes that a network's DEL succeeded.
func (c *runner) markGone(ifName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.answer(ifName); a != nil {
		a.Gone = true
		return
	}
	c.out.Done = append(c.out.Done, store.Answer{IfName: ifName, Gone: true})
}

// add attaches networks. The first one is attached alone, because its default route must precede
// the others. The others are attached at the same time, unless inOrder is true.
func (c *runner) add(ctx context.Context, all []store.Delegate, inOrder bool) error {
	if len(all) == 0 {
		return nil
	}
	one := func(ctx context.Context, d roles.Delegator, n *store.Delegate) error {
		l, call, err := c.list(n)
		if err == nil {
			c.markBegun(n.IfName)
			var r *roles.Result
			switch r, err = l.Add(ctx, d, call); {
			case err == nil:
				err = c.setResult(n.IfName, r)
			case !errors.As(err, new(*roles.UndoError)):
				c.markGone(n.IfName) // another DEL could remove a third-party attachment, or the plugin may not be installed
			}
		}
		return withNetwork(n, err)
	}
	if err := one(ctx, c.h.Delegate, &all[0]); err != nil {
		return err
	}
	return c.forEach(ctx, all[1:], inOrder || usesLinkInContainer(all), true, one)
}

// del detaches networks that are not marked as gone. It continues after an error.
func (c *runner) del(ctx context.Context, all []store.Delegate, inOrder bool) error {
	left := slices.DeleteFunc(slices.Clone(all), func(n store.Delegate) bool {
		a := c.answer(n.IfName)
		return a != nil && a.Gone
	})
	slices.Reverse(left)
	return c.forEach(ctx, left, inOrder || usesLinkInContainer(all), false, func(ctx context.Context, d roles.Delegator, n *store.Delegate) error {
		l, call, err := c.list(n)
		if err == nil {
			err = l.Del(ctx, d, call)
		}
		if err == nil {
			c.markGone(n.IfName)
		}
		return withNetwork(n, err)
	})
}

// forEach calls f for every network and joins the errors. With stop it starts no further call after
// an error. Networks with an executed plugin run concurrently, unless inOrder is true. Networks
// whose plugins all run in this process do not wait for other processes, so they run one after the
// other: concurrently they need 8 % more CPU time and are not faster.
func (c *runner) forEach(ctx context.Context, all []store.Delegate, inOrder, stop bool, f func(context.Context, roles.Delegator, *store.Delegate) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	var line []int
	for i := range all {
		if inOrder || !c.isExecuted(&all[i]) {
			line = append(line, i)
			continue
		}
		d, done := c.h.Delegate.Clone()
		wg.Go(func() {
			defer done()
			errs[i] = f(ctx, d, &all[i])
		})
	}
	for _, i := range line {
		errs[i] = f(ctx, c.h.Delegate, &all[i])
		if errs[i] != nil && stop {
			break
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// isExecuted reports whether one of a network's plugins is a separate program.
func (c *runner) isExecuted(n *store.Delegate) bool {
	l, err := parse(n)
	return err == nil && slices.ContainsFunc(l.Plugins, func(p netlist.Plugin) bool {
		return !c.h.Delegate.InProcess(p.Type, c.req) || p.IPAM != "" && !c.h.Delegate.InProcess(p.IPAM, c.req)
	})
}

// usesLinkInContainer reports whether one of the networks uses another network's interface.
func usesLinkInContainer(all []store.Delegate) bool {
	return slices.ContainsFunc(all, func(n store.Delegate) bool {
		l, err := parse(&n)
		return err == nil && slices.ContainsFunc(l.Plugins, func(p netlist.Plugin) bool {
			var conf struct {
				LinkInContainer bool `json:"linkInContainer"`
			}
			return coldjson.Unmarshal(p.Conf, &conf) == nil && conf.LinkInContainer
		})
	})
}

// withNetwork adds the network's name to an error.
func withNetwork(n *store.Delegate, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("network %q, interface %q: %w", n.Name, n.IfName, err)
}
