package netlist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/result"
)

// Call is one attachment to a list, as who runs the list has it.
type Call struct {
	// Request has the container, its namespace and interface, CNI_ARGS, CNI_PATH
	// and the environment; the list's own values take the place of the others.
	Request *roles.Request
	// Runtime are values by capability: each plugin gets, as runtimeConfig, those
	// that it wants.
	Runtime map[string]json.RawMessage
	// Args is an object whose members every plugin gets in args.cni.
	Args json.RawMessage
	// Device is the device of a device plugin that the network is to use: every plugin
	// gets it, as deviceID and pciBusID (Multus 4).
	Device string
	// Master takes the place of the first plugin's key master, if it is set.
	Master string
	// NoIPAM takes the key ipam away: no addresses are asked for.
	NoIPAM bool
	// Keep leaves what stands when a plugin's ADD fails.
	Keep bool
	// Prev is the result of the plugin before the list, for ADD; nil for none.
	Prev *roles.Result
	// Result is what ADD brought, for CHECK and DEL; nil when it is not known.
	Result *roles.Result
}

// Add runs ADD of every plugin in order and returns the last one's result. A plugin
// that is not installed is an error before the first one runs. When one fails, those
// before it are taken back unless they are to be kept, and the error has all that failed; one
// without a roles.UndoError says that nothing is left.
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
		if err != nil && c.Keep {
			return nil, err
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

// find looks for every plugin, and for the IPAM plugins of those of this program.
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

// Del runs DEL of every plugin in reverse. It goes on after an error and returns
// all of them joined.
func (l *List) Del(ctx context.Context, d roles.Delegator, c Call) error {
	var errs []error
	for i := len(l.Plugins) - 1; i >= 0; i-- {
		prev := c.Result
		if !result.AtLeast(l.CNIVersion, "0.4.0") {
			prev = nil // DEL came to know it with 0.4.0
		}
		req, err := l.Request(&c, i, roles.Del, prev)
		if err == nil {
			err = d.Del(ctx, l.Plugins[i].Type, req)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check runs CHECK of every plugin in order, with ADD's result. Lists that have
// no CHECK, by their version or on request, are as they should be.
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

// GC has every plugin remove what belongs to no valid attachment of the list,
// where it has GC. A nil list asks for nothing.
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

// Status asks every plugin whether it can serve, where the list has STATUS.
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

// polled tells whether the list's version has GC and STATUS.
func (l *List) polled() bool { return result.AtLeast(l.CNIVersion, "1.1.0") }

// Request is the i-th plugin's for a verb, with the result of the plugin before it.
func (l *List) Request(c *Call, i int, verb roles.Verb, prev *roles.Result) (*roles.Request, error) {
	req := *c.Request
	req.Verb, req.Network, req.CNIVersion, req.PrevResult, req.Valid = verb, l.Name, l.CNIVersion, nil, nil
	if verb == roles.GC || verb == roles.Status { // they are of no attachment
		req.ContainerID, req.IfName, req.Netns = "", "", ""
	}
	conf, err := l.conf(c, i, verb)
	if err == nil && prev != nil && result.AtLeast(l.CNIVersion, "0.3.0") {
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

// conf is the i-th plugin's configuration with what a runtime adds.
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

// wanted are the values of the capabilities that the plugin has.
func (p *Plugin) wanted(runtime map[string]json.RawMessage) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for name, v := range runtime {
		if p.Capabilities[name] {
			out[name] = v
		}
	}
	return out
}

// withValid puts GC's list into a request under both names that spec 1.1.0 had
// for it. It is never null.
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
