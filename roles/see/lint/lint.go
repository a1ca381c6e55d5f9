// Package lint checks CNI network configurations. It reports all faults at once, each with its
// position in the file.
//
// It uses the table of roles and the given files only. It runs no program and changes nothing.
package lint

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
)

// Severity of a finding.
type Severity string

const (
	// Fault means that the configuration does not work as written.
	Fault Severity = "fault"
	// Warning means that the configuration works, but a part of it has no effect or an unexpected
	// one.
	Warning Severity = "warning"
)

// Finding is one problem in a file.
type Finding struct {
	File string `json:"file"`
	// Line and Column count from 1.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path is the JSON path, "plugins[1].ipam.ranges[0].subnet". It is empty for the whole file.
	Path     string   `json:"path,omitempty"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	// Hint is the advice.
	Hint string `json:"hint,omitempty"`
	// UnknownKey means that a role or the runtime does not read the key at Path.
	UnknownKey bool `json:"-"`
}

// String is "file:line:column: severity: path: message; hint".
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d:%d: %s: ", f.File, f.Line, f.Column, f.Severity)
	if f.Path != "" {
		s += f.Path + ": "
	}
	s += f.Message
	if f.Hint != "" {
		s += "; " + f.Hint
	}
	return s
}

// Versions returns the existing versions of the CNI specification.
func Versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// Linter checks files. It remembers network names between files, because runtimes use only the
// first of two networks with the same name.
type Linter struct {
	// Table is every role of the binary.
	Table roles.Table
	// Find returns where a plugin of a type is installed, and whether that file is this program.
	Find func(typ string) (path string, ours, found bool)

	// seen has the file of each directory and name.
	seen map[string]string
	// bridges are those of the networks so far.
	bridges []bridge
}

// MaxSize limits the size of a file. It is far above the size of a network configuration.
const MaxSize = 4 << 20

// Lint returns the findings of one file in the order of the file. It never panics.
func (l *Linter) Lint(file string, data []byte) []Finding {
	c := &check{Linter: l, file: file, data: data}
	if len(data) > MaxSize {
		c.found = []Finding{{Line: 1, Column: 1, Severity: Fault, Message: fmt.Sprintf("is larger than %d bytes", MaxSize)}}
		return c.sorted()
	}
	if mark := byteOrderMark(); bytes.HasPrefix(data, mark) {
		if !c.isForMulti() {
			c.add(Fault, 0, "", "remove the first three bytes of the file", "begins with a byte order mark (BOM), and runtimes read no JSON with one")
		}
		data = data[len(mark):]
		c.data = data
	}
	root, err := parse(data)
	switch {
	case err != nil && !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) && c.yamlFile():
	case err != nil:
		c.found = append(c.found, syntaxFault(data, err))
	case isDefinition(root):
		c.definition(root, 0)
	case isManifest(root) && root.get("plugins") == nil && root.get("type") == nil:
	case root.kind != object:
		c.fault(root, "", "", "is a JSON %s, want an object", root.kind)
	default:
		c.duplicateKeys(root, "")
		c.network(root)
	}
	return c.sorted()
}

// check is the check of one file.
type check struct {
	*Linter
	file  string
	data  []byte
	found []Finding
	// inside means that the network is inside a file for multi, and givenName its name if it has none of its own.
	inside    bool
	givenName string
}

// add notes a finding about v.
func (c *check) add(s Severity, offset int, path, hint, format string, a ...any) {
	line, col := position(c.data, offset)
	c.found = append(c.found, Finding{
		Line: line, Column: col, Path: path, Severity: s,
		Message: fmt.Sprintf(format, a...), Hint: hint,
	})
}

// markUnknownKey says that the last finding is about a key that nobody reads.
func (c *check) markUnknownKey() { c.found[len(c.found)-1].UnknownKey = true }

func (c *check) fault(v *value, path, hint, format string, a ...any) {
	c.add(Fault, v.offset, path, hint, format, a...)
}

func (c *check) warn(v *value, path, hint, format string, a ...any) {
	c.add(Warning, v.offset, path, hint, format, a...)
}

// sorted returns the findings in the order of the file, without repetitions.
func (c *check) sorted() []Finding {
	for i := range c.found {
		c.found[i].File = c.file
	}
	sorting.Stable(c.found, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	type id struct{ path, message string }
	seen := map[id]bool{}
	return slices.DeleteFunc(c.found, func(f Finding) bool {
		k := id{f.Path, f.Message}
		old := seen[k]
		seen[k] = true
		return old
	})
}

// duplicateKeys reports duplicate keys of an object, of which decoders use the last.
func (c *check) duplicateKeys(v *value, path string) {
	seen := map[string]bool{}
	for _, m := range v.members {
		if seen[m.name] {
			c.add(Fault, m.offset, join(path, m.name), "keep one", "is present twice; the last one is used")
		}
		seen[m.name] = true
		c.duplicateKeys(m.value, join(path, m.name))
	}
	for i, item := range v.items {
		c.duplicateKeys(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

// network checks the keys outside the plugins, then each plugin, then the order of the plugins.
func (c *check) network(root *value) {
	single := root.get("plugins") == nil && root.get("type") != nil
	version := c.version(root, single)
	name := c.networkName(root)
	if single {
		if slices.Index(Versions(), version) >= slices.Index(Versions(), "1.0.0") && !c.inside {
			c.warn(root, "", `write {"name": …, "plugins": [ … ]}`, "a file with one plugin and no list is no longer valid since CNI 1.0.0; most runtimes still read it")
		}
		p := c.plugin(root, "", name, version)
		c.chain([]*pluginInfo{p})
		c.subnets(name, []*pluginInfo{p})
		c.egress([]*pluginInfo{p})
		return
	}
	c.listKeys(root)
	list := root.get("plugins")
	switch {
	case list == nil:
		c.fault(root, "", "", "has neither plugins nor a type")
		return
	case list.kind != array:
		c.fault(list, "plugins", "", "is a JSON %s, want a list", list.kind)
		return
	case len(list.items) == 0:
		c.fault(list, "plugins", "", "is empty")
		return
	}
	var plugins []*pluginInfo
	for i, item := range list.items {
		plugins = append(plugins, c.plugins(item, fmt.Sprintf("plugins[%d]", i), name, version)...)
	}
	c.chain(plugins)
	c.subnets(name, plugins)
	c.egress(plugins)
}

// plugins checks one plugin. In place of the plugin of a fused list it checks the plugins in it.
func (c *check) plugins(item *value, path, name, version string) []*pluginInfo {
	p := c.plugin(item, path, name, version)
	list := item.get("plugins")
	if p.typ != netlist.FusedType || list == nil || len(list.items) == 0 {
		return []*pluginInfo{p}
	}
	var inside []*pluginInfo
	for i, item := range list.items {
		inside = append(inside, c.plugin(item, fmt.Sprintf("%s.plugins[%d]", path, i), name, version))
	}
	if program := netlist.ManagerOf(c.data); program != "" {
		c.fault(item, path, "cnibox fuse --split --write "+c.file, "%s manages this network, and does not see the bridge and subnet of a fused list: its next network gets them too", program)
	}
	return inside
}

// listSchema returns the keys that runtimes read at the level of the list.
func listSchema() map[string]kind {
	return map[string]kind{
		"name": text, "cniVersion": text, "cniVersions": array, "plugins": array,
		"disableCheck": truth, "disableGC": truth, "loadOnlyInlinedPlugins": truth,
	}
}

// listKeys checks the keys beside "plugins".
func (c *check) listKeys(root *value) {
	known := listSchema()
	names := make([]string, 0, len(known))
	for k := range known {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, m := range root.members {
		want, ok := known[m.name]
		switch {
		case ok && want == truth && m.value.kind == text && isBoolText(m.value.text):
		case ok && want != m.value.kind && want == truth:
			c.fault(m.value, m.name, "", "is a JSON %s, want true or false", m.value.kind)
		case ok:
		default:
			if s := Suggest(m.name, names); s != "" {
				c.add(Warning, m.offset, m.name, fmt.Sprintf("did you mean %q?", s), "is not a key of a network list")
				c.markUnknownKey()
				continue
			}
			c.add(Warning, m.offset, m.name, "keys for a plugin go into its entry of plugins",
				"runtimes ignore this key at the level of the list")
		}
	}
}

func isBoolText(s string) bool { return strings.EqualFold(s, "true") || strings.EqualFold(s, "false") }

// version checks cniVersion and cniVersions and returns the version that a current runtime would
// use.
func (c *check) version(root *value, single bool) string {
	best := -1
	one := func(v *value, path string) {
		if v.kind != text {
			c.fault(v, path, "", "is a JSON %s, want a string", v.kind)
			return
		}
		i := slices.Index(Versions(), v.text)
		if i < 0 {
			c.fault(v, path, "versions: "+strings.Join(Versions(), ", "), "%q is not a version of the CNI spec", v.text)
		}
		best = max(best, i)
	}
	v, list := root.get("cniVersion"), root.get("cniVersions")
	if v != nil {
		one(v, "cniVersion")
	}
	switch {
	case list == nil && v == nil:
		c.warn(root, "", `add "cniVersion": "1.0.0"`, "without cniVersion the version is 0.1.0, which has no chaining and no CHECK")
	case list == nil:
	case single:
		c.warn(list, "cniVersions", "", "runtimes read this key only at the level of a list")
	case list.kind != array:
		c.fault(list, "cniVersions", "", "is a JSON %s, want a list", list.kind)
	default:
		for i, item := range list.items {
			one(item, fmt.Sprintf("cniVersions[%d]", i))
		}
	}
	return Versions()[max(best, 0)]
}

// networkName checks the name, including duplicates in former files.
func (c *check) networkName(root *value) string {
	v := root.get("name")
	switch {
	case v == nil && c.givenName != "":
		return c.givenName
	case v == nil:
		c.fault(root, "", `add "name"`, "has no name")
	case v.kind != text:
		c.fault(v, "name", "", "is a JSON %s, want a string", v.kind)
	case !roles.IsName(v.text):
		c.fault(v, "name", "letters, digits, dot, dash and underscore; the first is a letter or a digit", "%q is not a valid network name", v.text)
	case !c.inside: // definitions may share one
		id := filepath.Join(filepath.Dir(c.file), v.text) // a runtime reads one directory
		if other, ok := c.seen[id]; ok && filepath.Clean(other) != filepath.Clean(c.file) {
			c.fault(v, "name", "give each network a different name", "%s has a network %q too", other, v.text)
		}
		if c.seen == nil {
			c.seen = map[string]string{}
		}
		c.seen[id] = c.file
		return v.text
	default:
		return v.text
	}
	return ""
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
