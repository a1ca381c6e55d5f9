package netlist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// Call has the caller's parameters of one attachment to a list.
type Call struct {
	// Request has the container, its namespace and interface, CNI_ARGS, CNI_PATH and the
	// environment. The list's values replace the others.
	Request *roles.Request
	// Runtime has values by capability. Each plugin gets those that it accepts as runtimeConfig.
	Runtime map[string]json.RawMessage
	// Args is an object that is merged into args.cni of every plugin.
	Args json.RawMessage
	// Device is the device plugin's device for the network. Every plugin gets it as deviceID and
	// pciBusID (Multus 4).
	Device string
	// Master replaces the first plugin's key master if it is not empty.
	Master string
	// NoIPAM removes the key ipam, so that no addresses are allocated.
	NoIPAM bool
	// Keep keeps what the previous plugins made when one fails.
	Keep bool
	// Prev is the result of the plugin before the list, for ADD; nil for none.
	Prev *roles.Result
	// Result is the result of ADD for CHECK and DEL, or nil if it is unknown.
	Result *roles.Result
}

// KeptError is the error of a plugin after others whose changes were kept.
type KeptError struct{ Err error }

func (e *KeptError) Error() string { return e.Err.Error() }
func (e *KeptError) Unwrap() error { return e.Err }

// Add runs ADD of every plugin in order and returns the last result. If a plugin is not installed,
// Add fails before it runs the first one. If a plugin fails, Add runs DEL of the previous ones,
// unless Keep is set, and returns all errors. Without a roles.UndoError or a KeptError in them, nothing is left.
func (l *List) Add(ctx context.Context, d roles.Delegator, c Call) (*roles.Result, error) {
	if err := l.find(d, &c); err != nil {
		return nil, err
	}
	res := c.Prev
	for i := range l.Plugins {
		req, err := l.Request(&c, i, roles.Add, res)
		if err == nil {
			res, err = d.Add(ctx, l.Plugins[i].Type, req)
		}
		if err != nil && c.Keep && i > 0 {
			return nil, &KeptError{err}
		}
		if err != nil {
			c.Result = nil
			back := (&List{Name: l.Name, CNIVersion: l.CNIVersion, Plugins: l.Plugins[:i]}).Del(context.WithoutCancel(ctx), d, c)
			if back != nil {
				back = &roles.UndoError{Err: back}
			}
			return nil, errors.Join(err, back)
		}
	}
	return res, nil
}

// Plan returns what ADD of each plugin would do. A plugin that cannot be planned passes the
// previous result on, and a note says so.
func (l *List) Plan(ctx context.Context, d roles.Delegator, c Call) ([]*roles.Plan, error) {
	var all []*roles.Plan
	last := &roles.Plan{Result: c.Prev}
	for i, plugin := range l.Plugins {
		req, err := l.Request(&c, i, roles.Add, last.Result)
		if err != nil {
			return nil, err
		}
		p, err := d.Plan(ctx, plugin.Type, req)
		if errors.Is(err, roles.ErrUnplanned) {
			p, err = &roles.Plan{Notes: []string{err.Error()}}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("plugins[%d] %w", i, err)
		}
		if p.Result == nil {
			p.Result = last.Result
		}
		p.Placeholder = p.Placeholder || last.Placeholder
		all, last = append(all, p), p
	}
	return all, nil
}

// find checks that every plugin exists, including the IPAM plugins of cnibox's own plugins.
func (l *List) find(d roles.Delegator, c *Call) error {
	var errs []error
	look := func(i int, key, typ string) {
		if err := d.Find(typ, c.Request); err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d].%s: %w", i, key, err))
		}
	}
	for i, p := range l.Plugins {
		look(i, "type", p.Type)
		if p.IPAM != "" && !c.NoIPAM && d.InProcess(p.Type, c.Request) {
			look(i, "ipam.type", p.IPAM)
		}
	}
	return errors.Join(errs...)
}

// Del runs DEL of every plugin in reverse. It continues after an error and returns all errors
// joined.
func (l *List) Del(ctx context.Context, d roles.Delegator, c Call) error {
	var errs []error
	for i := len(l.Plugins) - 1; i >= 0; i-- {
		prev := c.Result
		if !result.AtLeast(l.CNIVersion, "0.4.0") {
			prev = nil // DEL gets prevResult since version 0.4.0
		}
		req, err := l.Request(&c, i, roles.Del, prev)
		if err == nil {
			err = d.Del(ctx, l.Plugins[i].Type, req)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check runs CHECK of every plugin in order with ADD's result. It succeeds for lists without CHECK.
func (l *List) Check(ctx context.Context, d roles.Delegator, c Call) error {
	if l.DisableCheck || !result.AtLeast(l.CNIVersion, "0.4.0") {
		return nil
	}
	var errs []error
	for i := range l.Plugins {
		if l.Plugins[i].noCheck {
			continue
		}
		req, err := l.Request(&c, i, roles.Check, c.Result)
		if err == nil {
			err = d.Check(ctx, l.Plugins[i].Type, req)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// GC runs GC of every plugin of the list with the valid attachments. A nil list does nothing.
func (l *List) GC(ctx context.Context, d roles.Delegator, c Call, valid []roles.AttachmentID) error {
	if valid == nil || l.DisableGC || !l.polled() {
		return nil
	}
	var errs []error
	for i := range l.Plugins {
		if l.Plugins[i].noGC {
			continue
		}
		req, err := l.Request(&c, i, roles.GC, nil)
		if err == nil {
			err = withValid(req, valid)
		}
		if err == nil {
			err = d.GC(ctx, l.Plugins[i].Type, req)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Status runs STATUS of every plugin of the list.
func (l *List) Status(ctx context.Context, d roles.Delegator, c Call) error {
	if !l.polled() {
		return nil
	}
	var errs []error
	for i := range l.Plugins {
		req, err := l.Request(&c, i, roles.Status, nil)
		if err == nil {
			err = d.Status(ctx, l.Plugins[i].Type, req)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// polled reports whether the list's version has GC and STATUS.
func (l *List) polled() bool { return result.AtLeast(l.CNIVersion, "1.1.0") }

// Request is the i-th plugin's for a verb, with the result of the plugin before it.
func (l *List) Request(c *Call, i int, verb roles.Verb, prev *roles.Result) (*roles.Request, error) {
	req := *c.Request
	req.Verb, req.Network, req.CNIVersion, req.PrevResult, req.Valid = verb, l.Name, l.CNIVersion, nil, nil
	if verb == roles.GC || verb == roles.Status { // these verbs have no attachment
		req.ContainerID, req.IfName, req.Netns = "", "", ""
	}
	conf, err := l.conf(c, i, verb)
	if err == nil && prev != nil {
		req.PrevResult = prev
		var raw json.RawMessage
		if raw, err = result.Encode(prev, l.CNIVersion); err == nil {
			conf, err = rawjson.Set(conf, "prevResult", raw)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("network %q: plugins[%d] %s: %w", l.Name, i, l.Plugins[i].Type, err)
	}
	req.Conf = conf
	return &req, nil
}

// conf returns the i-th plugin's configuration with the runtime's keys.
func (l *List) conf(c *Call, i int, verb roles.Verb) (json.RawMessage, error) {
	p := &l.Plugins[i]
	e := edited{conf: p.Conf}
	if given := p.wanted(c.Runtime); len(given) > 0 && verb != roles.GC && verb != roles.Status {
		e.set("runtimeConfig", given)
	}
	if c.NoIPAM {
		e.remove("ipam")
	}
	if c.Device != "" {
		e.set("pciBusID", c.Device)
		e.set("deviceID", c.Device)
	}
	if c.Master != "" && i == 0 {
		e.set("master", c.Master)
	}
	if len(c.Args) > 0 {
		e.mergeArgs(c.Args)
	}
	e.set("cniVersion", l.CNIVersion)
	e.set("name", l.Name)
	return e.conf, e.err
}

// wanted returns the values of the plugin's capabilities.
func (p *Plugin) wanted(runtime map[string]json.RawMessage) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for name, v := range runtime {
		if p.Capabilities[name] {
			out[name] = v
		}
	}
	return out
}

// withValid adds GC's list to a request under both names that spec 1.1.0 has used. It is never
// null.
func withValid(req *roles.Request, valid []roles.AttachmentID) error {
	req.Valid = slices.Clone(valid)
	if req.Valid == nil {
		req.Valid = []roles.AttachmentID{}
	}
	e := edited{conf: req.Conf}
	e.set("cni.dev/attachments", req.Valid)
	e.set("cni.dev/valid-attachments", req.Valid)
	req.Conf = e.conf
	return e.err
}
