package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netlist"
	"github.com/cnibox/cnibox/roles/result"
	"github.com/cnibox/cnibox/store"
)

// course is one call of the plugins of recorded networks.
type course struct {
	h   *roles.Host
	req *roles.Request
	// out is what came of them so far.
	out *store.Delegated
	// begun are the interfaces whose ADD began in this call.
	begun map[string]bool
	// mu guards out and begun.
	mu sync.Mutex
}

func (m *handler) course(h *roles.Host, req *roles.Request) *course {
	as := *req
	if m.conf.BinDir != "" {
		as.Path = append([]string{m.conf.BinDir}, req.Path...)
	}
	return &course{h: h, req: &as, begun: map[string]bool{}, out: &store.Delegated{Owner: req.Key(), State: store.Pending}}
}

// list is a recorded network, and the call of its plugins.
func (c *course) list(d *store.Delegate) (*netlist.List, netlist.Call, error) {
	l, err := netlist.Parse(d.List, d.Version)
	req := *c.req
	req.IfName, req.PrevResult, req.Valid = d.IfName, nil, nil
	return l, netlist.Call{Request: &req, Runtime: d.Runtime, Args: d.Args, Device: d.Device, Master: d.HostLink, NoIPAM: d.NoIPAM, Result: c.result(d.IfName)}, err
}

// recall takes CNI_ARGS and CNI_PATH of ADD where they are recorded: a DEL without
// them, as GC's, is to find the same plugins.
func (c *course) recall(asked *store.Delegation) {
	if args, err := roles.ParseArgs(asked.Args); err == nil {
		c.req.Args = args
	}
	for _, dir := range asked.Path {
		if !slices.Contains(c.req.Path, dir) {
			c.req.Path = append(slices.Clip(c.req.Path), dir)
		}
	}
}

// answer is what is known of a network's ADD; nil when nothing is.
func (c *course) answer(ifName string) *store.Answer {
	i := slices.IndexFunc(c.out.Done, func(a store.Answer) bool { return a.IfName == ifName })
	if i < 0 {
		return nil
	}
	return &c.out.Done[i]
}

// result is a network's, or nil. One that cannot be read any more is none.
func (c *course) result(ifName string) *roles.Result {
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

// took records a network's result.
func (c *course) took(ifName string, r *roles.Result) error {
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

// begin notes that a network's ADD began.
func (c *course) begin(ifName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun[ifName] = true
}

// spare leaves networks out of DEL whose ADD has not begun: some plugins refuse the DEL
// of what they do not know, and runtimes would repeat it for ever.
func (c *course) spare(all []store.Delegate) {
	for i := range all {
		if !c.begun[all[i].IfName] {
			c.gone(all[i].IfName)
		}
	}
}

// gone records that a network's DEL succeeded.
func (c *course) gone(ifName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.answer(ifName); a != nil {
		a.Gone = true
		return
	}
	c.out.Done = append(c.out.Done, store.Answer{IfName: ifName, Gone: true})
}

// add attaches networks: the first one alone, whose default route others are to come
// behind, and the others at the same time unless they are to keep the order.
func (c *course) add(ctx context.Context, all []store.Delegate, inOrder bool) error {
	if len(all) == 0 {
		return nil
	}
	one := func(ctx context.Context, d roles.Delegator, n *store.Delegate) error {
		l, call, err := c.list(n)
		if err == nil {
			c.begin(n.IfName)
			var r *roles.Result
			switch r, err = l.Add(ctx, d, call); {
			case err == nil:
				err = c.took(n.IfName, r)
			case !errors.As(err, new(*roles.UndoError)):
				c.gone(n.IfName) // one more DEL could take away what is another's, or find no plugin
			}
		}
		return named(n, err)
	}
	if err := one(ctx, c.h.Delegate, &all[0]); err != nil {
		return err
	}
	return c.each(ctx, all[1:], inOrder || stacked(all), true, one)
}

// del detaches networks of which nobody said that they are gone. It goes on after
// an error.
func (c *course) del(ctx context.Context, all []store.Delegate, inOrder bool) error {
	left := slices.DeleteFunc(slices.Clone(all), func(n store.Delegate) bool {
		a := c.answer(n.IfName)
		return a != nil && a.Gone
	})
	slices.Reverse(left)
	return c.each(ctx, left, inOrder || stacked(all), false, func(ctx context.Context, d roles.Delegator, n *store.Delegate) error {
		l, call, err := c.list(n)
		if err == nil {
			err = l.Del(ctx, d, call)
		}
		if err == nil {
			c.gone(n.IfName)
		}
		return named(n, err)
	})
}

// each calls f for every network and joins the errors; stop ends after the first
// one, as far as others have not begun. Unless they are to keep the order, networks
// with a plugin that is executed go on by themselves meanwhile. Those whose plugins
// are this very program have nothing to wait for and come one after the other: at
// the same time they cost 8 % more of a call's one CPU and win nothing.
func (c *course) each(ctx context.Context, all []store.Delegate, inOrder, stop bool, f func(context.Context, roles.Delegator, *store.Delegate) error) error {
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
		if errs[i] = f(ctx, c.h.Delegate, &all[i]); errs[i] != nil && stop {
			break
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// isExecuted tells whether one of a network's plugins is another program.
func (c *course) isExecuted(n *store.Delegate) bool {
	l, err := netlist.Parse(n.List, n.Version)
	return err == nil && slices.ContainsFunc(l.Plugins, func(p netlist.Plugin) bool {
		return !c.h.Delegate.InProcess(p.Type, c.req) || p.IPAM != "" && !c.h.Delegate.InProcess(p.IPAM, c.req)
	})
}

// stacked tells whether one of the networks stands on another's interface.
func stacked(all []store.Delegate) bool {
	type plugin struct {
		LinkInContainer bool `json:"linkInContainer"`
	}
	for _, n := range all {
		var conf struct {
			plugin
			Plugins []plugin `json:"plugins"`
		}
		if coldjson.Unmarshal(n.List, &conf) == nil && slices.ContainsFunc(append(conf.Plugins, conf.plugin), func(p plugin) bool { return p.LinkInContainer }) {
			return true
		}
	}
	return false
}

// named puts the network's name before an error.
func named(n *store.Delegate, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("network %q, interface %q: %w", n.Name, n.IfName, err)
}
