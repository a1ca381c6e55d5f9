// Package netlist runs network configuration lists (CNI spec 1.1.0, sections 1 and 3) through a
// role's Delegator, like a runtime: each plugin gets the result of the previous one.
//
// Configurations are passed on byte by byte. Only the keys that the specification defines for
// runtimes are added.
package netlist

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
)

// FusedType is the type of a fused list: a plugin whose key plugins holds the plugins
// of a list, which one process runs (role chain).
const FusedType = "chain"

// maxPlugins is the maximum number of plugins of a list.
const maxPlugins = 64

// List is a network: plugins in the order of ADD.
type List struct {
	Name       string
	CNIVersion string
	// DisableCheck and DisableGC disable the verbs.
	DisableCheck, DisableGC bool
	Plugins                 []Plugin
}

// Plugin is one plugin of a list.
type Plugin struct {
	Type string
	// IPAM is the type of its IPAM plugin, or empty.
	IPAM string
	// Capabilities are the runtimeConfig keys that the plugin accepts.
	Capabilities map[string]bool
	// Conf is the unchanged configuration.
	Conf json.RawMessage
	// Fused are the plugins of a fused list; nil for every other plugin.
	Fused []Plugin

	// noCheck and noGC are the switches of the fused list that the plugin is in.
	noCheck, noGC bool
}

// listConf has the required keys of a list or of one plugin's configuration.
type listConf struct {
	Name         string            `json:"name"`
	CNIVersion   string            `json:"cniVersion"`
	CNIVersions  []string          `json:"cniVersions"`
	DisableCheck json.RawMessage   `json:"disableCheck"`
	DisableGC    json.RawMessage   `json:"disableGC"`
	Type         string            `json:"type"`
	Plugins      []json.RawMessage `json:"plugins"`
}

// pluginConf has the required keys of a plugin's configuration.
type pluginConf struct {
	Type         string            `json:"type"`
	Capabilities map[string]bool   `json:"capabilities"`
	IPAM         roles.IPAMConf    `json:"ipam"`
	DisableCheck json.RawMessage   `json:"disableCheck"`
	DisableGC    json.RawMessage   `json:"disableGC"`
	Plugins      []json.RawMessage `json:"plugins"`
}

// Parse parses a list, or one plugin's configuration as a list of one. version is used if the list
// has none. All faults are reported at once, together with the valid part of the list, or nil.
func Parse(raw []byte, version string) (*List, error) {
	var c listConf
	if err := roles.Decode(raw, &c); err != nil {
		return nil, err
	}
	var f roles.Faults
	l := &List{Name: c.Name, CNIVersion: c.version(&f, version)}
	switch {
	case c.Name == "":
		f.Addf("name", "is missing")
	case !roles.IsName(c.Name): // plugins use it in paths
		f.Addf("name", "%.100q is not the name of a network: a letter or digit, then letters, digits, \".\", \"_\" and \"-\"", c.Name)
	}
	l.DisableCheck, l.DisableGC = truth(&f, "disableCheck", c.DisableCheck), truth(&f, "disableGC", c.DisableGC)
	if c.Plugins == nil && c.Type != "" && c.Type != FusedType {
		c.Plugins = []json.RawMessage{raw}
	}
	l.Plugins = plugins(&f, "plugins", c.Plugins, false)
	return l, f.Err()
}

// plugins reads the plugins at a JSON path. Those of a fused list are inside of one.
func plugins(f *roles.Faults, path string, confs []json.RawMessage, inside bool) []Plugin {
	if len(confs) == 0 {
		f.Addf(path, "is missing: name at least one plugin")
	}
	if len(confs) > maxPlugins {
		f.Addf(path, "has %d entries, at most %d are run", len(confs), maxPlugins)
		confs = confs[:maxPlugins]
	}
	var all []Plugin
	for i, conf := range confs {
		at := fmt.Sprintf("%s[%d]", path, i)
		var c pluginConf
		err := coldjson.Unmarshal(conf, &c)
		p := Plugin{Type: c.Type, IPAM: c.IPAM.Type, Capabilities: c.Capabilities, Conf: conf}
		switch {
		case err != nil:
			f.Addf(at, "%v", roles.Mismatch(err))
		case c.Type == "":
			f.Addf(at+".type", "is missing")
		case c.Type == FusedType && inside:
			f.Addf(at+".type", "is %q inside another %[1]s: write its plugins into the outer list", FusedType)
		case c.Type == FusedType:
			p.Fused = plugins(f, at+".plugins", c.Plugins, true)
			noCheck, noGC := truth(f, at+".disableCheck", c.DisableCheck), truth(f, at+".disableGC", c.DisableGC)
			for j := range p.Fused {
				p.Fused[j].noCheck, p.Fused[j].noGC = noCheck, noGC
			}
		}
		all = append(all, p)
	}
	return all
}

// Unfused returns the list with each fused list replaced by its plugins.
func (l *List) Unfused() *List {
	out := *l
	out.Plugins = nil
	for _, p := range l.Plugins {
		if p.Fused == nil {
			p.Fused = []Plugin{p}
		}
		out.Plugins = append(out.Plugins, p.Fused...)
	}
	return &out
}

// version returns the newest supported version of the list (spec 1.1.0, section 1: cniVersions).
func (c *listConf) version(f *roles.Faults, otherwise string) string {
	known := result.Versions()
	newest := slices.Index(known, c.CNIVersion)
	for _, v := range c.CNIVersions {
		newest = max(newest, slices.Index(known, v))
	}
	switch {
	case newest >= 0:
		return known[newest]
	case c.CNIVersion == "" && len(c.CNIVersions) == 0:
		return otherwise
	}
	given := strings.Join(append(c.CNIVersions, c.CNIVersion), ", ")
	f.Addf("cniVersion", "%.100q is not supported: use one of %s", strings.Trim(given, ", "), strings.Join(known, ", "))
	return otherwise
}

// truth parses a boolean, which lists may have as true or "true".
func truth(f *roles.Faults, path string, raw json.RawMessage) bool {
	switch strings.ToLower(string(raw)) {
	case "", "null", "false", `"false"`:
		return false
	case "true", `"true"`:
		return true
	}
	f.Addf(path, "is %.40s, want true or false", raw)
	return false
}

// Can reports whether a plugin of the list accepts a runtimeConfig key.
func (l *List) Can(capability string) bool { return slices.Contains(l.Capabilities(), capability) }

// Capabilities returns the runtimeConfig keys that plugins of the list accept, in order.
func (l *List) Capabilities() []string {
	var out []string
	for _, p := range l.Unfused().Plugins {
		for name, on := range p.Capabilities {
			if on && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}
