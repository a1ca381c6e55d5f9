// Package netlist runs network configuration lists (CNI spec 1.1.0, sections 1
// and 3) through a role's Delegator, as a runtime runs them: each plugin gets the
// result of the one before.
//
// Configurations are handed on byte by byte. Only the keys that the spec has a
// runtime add are put in, so what a plugin keeps there for itself reaches it.
package netlist

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/result"
)

// maxPlugins is more than any list has.
const maxPlugins = 64

// List is a network: plugins in the order of ADD.
type List struct {
	Name       string
	CNIVersion string
	// DisableCheck and DisableGC keep the verbs from the plugins.
	DisableCheck, DisableGC bool
	Plugins                 []Plugin
}

// Plugin is one plugin of a list.
type Plugin struct {
	Type string
	// IPAM is the type of its IPAM plugin, or empty.
	IPAM string
	// Capabilities are the runtimeConfig keys that it wants.
	Capabilities map[string]bool
	// Conf is its configuration as it was written.
	Conf json.RawMessage
}

// listConf is what is read of a list, or of one plugin's configuration.
type listConf struct {
	Name         string            `json:"name"`
	CNIVersion   string            `json:"cniVersion"`
	CNIVersions  []string          `json:"cniVersions"`
	DisableCheck json.RawMessage   `json:"disableCheck"`
	DisableGC    json.RawMessage   `json:"disableGC"`
	Type         string            `json:"type"`
	Plugins      []json.RawMessage `json:"plugins"`
}

// pluginConf is what is read of a plugin's configuration.
type pluginConf struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         roles.IPAMConf  `json:"ipam"`
}

// Parse reads a list, or one plugin's configuration as a list of one. A list
// that names no version gets the given one. All faults are told at once.
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
	case !roles.IsName(c.Name): // plugins make paths of it
		f.Addf("name", "%.100q is no network name: a letter or digit, then letters, digits, \".\", \"_\" and \"-\"", c.Name)
	}
	l.DisableCheck, l.DisableGC = truth(&f, "disableCheck", c.DisableCheck), truth(&f, "disableGC", c.DisableGC)
	switch {
	case c.Plugins == nil && c.Type != "":
		c.Plugins = []json.RawMessage{raw}
	case len(c.Plugins) == 0:
		f.Addf("plugins", "is missing: name at least one plugin")
	case len(c.Plugins) > maxPlugins:
		f.Addf("plugins", "has %d entries, at most %d are run", len(c.Plugins), maxPlugins)
	}
	for i, conf := range c.Plugins[:min(len(c.Plugins), maxPlugins)] {
		path := fmt.Sprintf("plugins[%d]", i)
		var p pluginConf
		switch err := coldjson.Unmarshal(conf, &p); {
		case err != nil:
			f.Addf(path, "%v", roles.Mismatch(err))
		case p.Type == "":
			f.Addf(path+".type", "is missing")
		}
		l.Plugins = append(l.Plugins, Plugin{Type: p.Type, IPAM: p.IPAM.Type, Capabilities: p.Capabilities, Conf: conf})
	}
	return l, f.Err()
}

// version is the newest that is spoken of those that the list names (spec
// 1.1.0, section 1: cniVersions).
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
	f.Addf("cniVersion", "%q is none of those that are spoken: %q", append(c.CNIVersions, c.CNIVersion), known)
	return otherwise
}

// truth reads a switch, which lists have as true and as "true".
func truth(f *roles.Faults, path string, raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", "false", `"false"`:
		return false
	case "true", `"true"`:
		return true
	}
	f.Addf(path, "is %.40s, want true or false", raw)
	return false
}

// Can tells whether a plugin of the list wants a runtimeConfig key.
func (l *List) Can(capability string) bool {
	return slices.ContainsFunc(l.Plugins, func(p Plugin) bool { return p.Capabilities[capability] })
}
