// Package chain is the meta role of a fused list. It runs the plugins of a network list
// in one process, while a runtime starts one process for each plugin. Third-party plugins
// are executed.
//
// It keeps no records itself. The plugins keep the same records as in the original list,
// so both forms of the list can check and remove an attachment of the other form.
package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
)

// Conf is a network list as one plugin's configuration.
type Conf struct {
	roles.NetConf
	// Plugins are the unchanged configurations of the list's plugins, in the order of
	// ADD. The key capabilities of the fused list must have the capabilities of all plugins.
	Plugins []json.RawMessage `json:"plugins"`
	// DisableCheck makes CHECK succeed without a call of the plugins. Default false.
	DisableCheck json.RawMessage `json:"disableCheck,omitempty"`
	// DisableGC makes GC succeed without a call of the plugins. Default false.
	DisableGC json.RawMessage `json:"disableGC,omitempty"`
	// RuntimeConfig holds the runtime's values by capability. Each plugin gets the keys
	// of the capabilities that it declares.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	// Args has the runtime's values for all plugins.
	Args struct {
		// CNI is merged into each plugin's args.cni.
		CNI map[string]json.RawMessage `json:"cni,omitempty"`
	} `json:"args,omitzero"`
	// DeviceID is the device that a meta plugin such as Multus chose. Each plugin gets it.
	DeviceID string `json:"deviceID,omitempty"`

	list *netlist.List
}

// Role is the chain role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:   []string{netlist.FusedType},
		Kind:    roles.Meta,
		Summary: "the plugins of a list in one process (see cnibox fuse)",
		Conf:    func() any { return new(Conf) },
		New: func(raw []byte) (roles.Handler, error) {
			c, err := read(raw)
			if err != nil {
				return nil, err
			}
			return &handler{c}, nil
		},
		Undo: func(raw []byte) (roles.Handler, error) {
			c, err := read(raw)
			if err != nil && (c == nil || !errors.Is(err, roles.ErrConf)) {
				return nil, err
			}
			callable := func(p netlist.Plugin) bool { return p.Type != "" && p.Type != netlist.FusedType }
			c.list.Plugins = slices.DeleteFunc(c.list.Plugins, func(p netlist.Plugin) bool { return !callable(p) })
			return &handler{c}, nil
		},
	}
}

// read decodes and validates a configuration. With an error that is roles.ErrConf it
// also returns the valid part of the configuration, or nil if there is no list.
func read(raw []byte) (*Conf, error) {
	c := new(Conf)
	err := roles.Decode(raw, c)
	if err != nil && !errors.Is(err, roles.ErrConf) {
		return nil, err
	}
	var listErr error
	c.list, listErr = netlist.Parse(raw, "0.1.0")
	if c.list == nil {
		return nil, cmp.Or(err, listErr)
	}
	more := errors.Join(listErr, c.validate())
	if err != nil {
		return c, roles.JoinFaults(err, more)
	}
	return c, more
}

// validate returns the faults outside of the list. netlist.Parse finds the faults of the
// list.
func (c *Conf) validate() error {
	var f roles.Faults
	if c.IPAM.Type != "" {
		f.Addf("ipam", "has no effect here: move it into the plugin that makes the interface")
	}
	for i, p := range c.list.Plugins {
		if p.Type == netlist.FusedType {
			f.Addf(fmt.Sprintf("plugins[%d].type", i), "is %q inside another %[1]s: write its plugins into this list", netlist.FusedType)
		}
		for _, key := range slices.Sorted(maps.Keys(p.Capabilities)) {
			if p.Capabilities[key] && !c.Capabilities[key] {
				f.Addf("capabilities."+key, "is missing: plugins[%d] (%s) has it, and the runtime reads it here: add it", i, p.Type)
			}
		}
	}
	return f.Err()
}

// handler answers the CNI verbs for one fused list.
type handler struct{ conf *Conf }

// call returns the list with the name and version of the request, and the parameters
// of the call.
func (c *handler) call(req *roles.Request) (*netlist.List, netlist.Call) {
	list := *c.conf.list
	list.Name, list.CNIVersion = req.Network, req.CNIVersion
	var args json.RawMessage
	if len(c.conf.Args.CNI) > 0 {
		args, _ = json.Marshal(c.conf.Args.CNI) // values that were decoded always have JSON
	}
	return &list, netlist.Call{
		Request: req, Runtime: c.conf.RuntimeConfig, Args: args, Device: c.conf.DeviceID,
		Prev: req.PrevResult, Result: req.PrevResult,
	}
}

// Add runs ADD of every plugin in order. If one fails, it runs DEL of the previous ones.
func (c *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	list, call := c.call(req)
	return list.Add(ctx, h.Delegate, call)
}

// Del runs DEL of every plugin, from the last one to the first.
func (c *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	list, call := c.call(req)
	return list.Del(ctx, h.Delegate, call)
}

// Check runs CHECK of every plugin.
func (c *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	list, call := c.call(req)
	return list.Check(ctx, h.Delegate, call)
}

// GC runs GC of every plugin.
func (c *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	list, call := c.call(req)
	return list.GC(ctx, h.Delegate, call, req.Valid)
}

// Status runs STATUS of every plugin.
func (c *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	list, call := c.call(req)
	return list.Status(ctx, h.Delegate, call)
}
