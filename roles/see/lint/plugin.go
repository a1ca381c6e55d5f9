package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// pluginInfo is what the check of the plugins' order needs of one plugin.
type pluginInfo struct {
	value *value
	path  string
	typ   string
	role  *roles.Role // nil for a third-party plugin
}

// plugin checks one plugin's configuration.
func (c *check) plugin(v *value, path, network, version string) *pluginInfo {
	info := &pluginInfo{value: v, path: path}
	if v.kind != object {
		c.fault(v, path, "", "is a JSON %s, want an object", v.kind)
		return info
	}
	info.typ, info.role = c.pluginType(v.get("type"), v, join(path, "type"))
	c.ignored(v, path, info.role)
	if info.role == nil {
		c.ipamType(v, path)
		return info
	}
	ipam := c.ipamType(v, path)
	if s := roleSchema(info.role); s != nil {
		if path == "" { // there is no list; list keys are checked elsewhere
			for k := range listSchema() {
				s.add(k, &schema{name: "any"})
			}
		}
		c.keys(v, path, withIPAM(s, ipam, v), info.typ)
	}
	conf, err := c.conf(v, network, version)
	if err != nil {
		c.fault(v, path, "", "%v", err)
		return info
	}
	c.faults(info, conf, info.role)
	if ipam != nil && info.role.Kind == roles.Interface {
		c.faults(info, conf, ipam)
	}
	return info
}

// pluginType returns the role of a plugin's type. It reports a plugin that a runtime would not
// find.
func (c *check) pluginType(t, parent *value, path string) (string, *roles.Role) {
	switch {
	case t == nil:
		c.fault(parent, path, "", "is missing")
		return "", nil
	case t.kind != text:
		c.fault(t, path, "", "is a JSON %s, want a string", t.kind)
		return "", nil
	case t.text == "" || strings.Contains(t.text, "/"):
		c.fault(t, path, "", "%q is not a plugin name", t.text)
		return "", nil
	}
	role, known := c.Table.Lookup(t.text)
	where, ours, found := c.Find(t.text)
	switch {
	case !known && !found:
		var names []string
		for _, e := range c.Table {
			names = append(names, strings.Fields(e.Names)...)
		}
		hint := ""
		if s := Suggest(t.text, names); s != "" {
			hint = fmt.Sprintf("did you mean %q?", s)
		}
		c.fault(t, path, hint, "plugin %q is neither installed nor a role", t.text)
	case known && !found && role.New != nil:
		c.warn(t, path, "cnibox install "+t.text, "%q is a role, but not linked where runtimes look", t.text)
	case known && found && !ours:
		c.warn(t, path, "cnibox install --force "+t.text+" replaces it", "%s is another program's plugin; its keys are checked as cnibox's", where)
	}
	return t.text, role
}

// ipamType checks the type of ipam and returns its role. It returns nil if there is none or it is a
// third-party plugin.
func (c *check) ipamType(v *value, path string) *roles.Role {
	ipam := v.get("ipam")
	if ipam == nil || ipam.kind != object || len(ipam.members) == 0 {
		return nil
	}
	t := ipam.get("type")
	if t == nil {
		c.warn(ipam, join(path, "ipam"), `add "type", or remove ipam for layer 2 only`, "has no type, so no addresses are given")
		return nil
	}
	if t.kind == text && t.text == "" {
		return nil
	}
	_, role := c.pluginType(t, ipam, join(path, "ipam.type"))
	if role != nil && role.Kind != roles.IPAM {
		c.fault(t, join(path, "ipam.type"), "", "%q is not an IPAM plugin, its kind is %s", t.text, role.Kind)
		return nil
	}
	return role
}

// withIPAM adds the keys of the IPAM role to "ipam". The keys of a third-party IPAM plugin are
// unknown, so every key is allowed.
func withIPAM(s *schema, ipam *roles.Role, v *value) *schema {
	if v.get("ipam").get("type") == nil {
		return s
	}
	var inner *schema
	if ipam != nil {
		if is := roleSchema(ipam); is != nil {
			inner = is.keys["ipam"]
		}
	}
	if inner == nil || inner.keys == nil {
		s.keys["ipam"] = &schema{name: "object"}
		return s
	}
	inner.owner = ipam.Name()
	s.keys["ipam"] = inner
	return s
}

// keys reports keys that the plugin does not read.
func (c *check) keys(v *value, path string, s *schema, typ string) {
	if s.owner != "" {
		typ = s.owner
	}
	for i, item := range v.items {
		if s.elem != nil {
			c.keys(item, fmt.Sprintf("%s[%d]", path, i), s.elem, typ)
		}
	}
	for _, m := range v.members {
		at := join(path, m.name)
		if s.keys == nil {
			if s.elem != nil {
				c.keys(m.value, at, s.elem, typ)
			}
			continue
		}
		if strings.HasPrefix(m.name, "cni.dev/") {
			continue
		}
		if child, ok := s.keys[m.name]; ok {
			c.keys(m.value, at, child, typ)
			continue
		}
		if !s.open {
			c.unknown(m, at, s, typ)
		}
	}
}

// unknown reports a key that the plugin does not read. encoding/json ignores the case of keys, but
// other plugins may not, so a difference in case is reported, too.
func (c *check) unknown(m member, path string, s *schema, typ string) {
	for _, k := range s.order {
		if strings.EqualFold(k, m.name) {
			c.add(Warning, m.offset, path, fmt.Sprintf("write %q", k), "is read as %q", k)
			c.keys(m.value, path, s.keys[k], typ)
			return
		}
	}
	hint := "cnibox lint --explain " + typ + " lists the keys"
	if near := Suggest(m.name, s.names()); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	c.add(Warning, m.offset, path, hint, "is not a key of %s", typ)
	c.markUnknownKey()
}

// PolicyLabels is the key of a network with the annotations that are labels for network policies.
const PolicyLabels = "policyLabels"

// ignored warns about keys that have no effect in a file.
func (c *check) ignored(v *value, path string, role *roles.Role) {
	at := func(key string) string { return join(path, key) }
	if d := v.get("dns"); d != nil && len(d.members) > 0 {
		c.warn(d, at("dns"), "", "Kubernetes ignores the dns of a network; other runtimes may use it")
	}
	if r := v.get("runtimeConfig"); r != nil {
		c.warn(r, at("runtimeConfig"), "declare the keys in capabilities", "runtimes replace this key with their own")
	}
	if p := v.get("prevResult"); p != nil {
		c.warn(p, at("prevResult"), "", "runtimes replace this key with their own")
	}
	if role == nil {
		return
	}
	ipamType := v.get("ipam").get("type").string()
	ipam, known := c.Table.Lookup(ipamType)
	keys := role.Ignored
	if known {
		keys = slices.Concat(keys, ipam.Ignored)
	}
	for _, key := range keys {
		k := v
		for name := range strings.SplitSeq(key, ".") {
			k = k.get(name)
		}
		if k != nil {
			c.warn(k, at(key), "", "has no effect here")
		}
	}
	if i := v.get("ipam"); i != nil && len(i.members) > 0 && role.Kind == roles.Chained {
		c.warn(i, at("ipam"), "", "a chained plugin gives no addresses")
	}
	if l := v.get(PolicyLabels); l != nil && len(l.items) > 0 {
		c.warn(l, at(PolicyLabels), "let the runtime set CNIBOX_LABELS in CNI_ARGS", "who makes a pod chooses its annotations, so the pod can meet each policy that selects by these keys")
	}
	caps := v.get("capabilities")
	if caps == nil {
		return
	}
	thirdParty := ipamType != "" && !known // may read any key
	for _, m := range caps.members {
		if m.value.kind != truth {
			c.fault(m.value, at("capabilities."+m.name), "", "is a JSON %s, want true or false", m.value.kind)
			continue
		}
		if m.value.truth && !thirdParty && !reads(role, m.name) && !reads(ipam, m.name) && !fusedReads(v, role, m.name) {
			c.add(Warning, m.offset, at("capabilities."+m.name), "", "%s does not read this capability", role.Name())
		}
	}
}

// string returns the text of a string value, or "".
func (v *value) string() string {
	if v == nil {
		return ""
	}
	return v.text
}

// fusedReads reports whether a plugin of a fused list has a capability.
func fusedReads(v *value, role *roles.Role, capability string) bool {
	list := v.get("plugins")
	return role.Name() == netlist.FusedType && list != nil && slices.ContainsFunc(list.items, func(p *value) bool {
		c := p.get("capabilities").get(capability)
		return c != nil && c.truth
	})
}

// reads reports whether a role reads a capability.
func reads(r *roles.Role, capability string) bool {
	return r != nil && (slices.Contains(r.Capabilities, capability) || r.Kind == roles.Interface && capability == enforce.AnnotationsCapability)
}

// conf returns the configuration as a runtime passes it to the plugin.
func (c *check) conf(v *value, network, version string) ([]byte, error) {
	var keys map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(c.data[v.offset:]))
	if err := dec.Decode(&keys); err != nil {
		return nil, err
	}
	for k, s := range map[string]string{"name": network, "cniVersion": version} {
		if s == "" {
			continue
		}
		quoted, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		keys[k] = quoted
	}
	return json.Marshal(keys)
}

// faults reports the role's faults of its configuration.
func (c *check) faults(info *pluginInfo, conf []byte, role *roles.Role) {
	if role.New == nil {
		return
	}
	_, err := role.New(conf)
	for _, e := range roles.SplitJoined(err) {
		var ce *roles.ConfError
		if !errors.As(e, &ce) {
			c.fault(info.value, info.path, "", "%v", e)
			continue
		}
		inner := ce.Path
		if strings.HasPrefix(inner, "(") {
			inner = ""
		}
		path := info.path
		if inner != "" {
			path = join(path, inner)
		}
		c.add(Fault, info.value.locate(inner), path, "", "%s", ce.Reason)
	}
}
