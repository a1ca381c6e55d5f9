package netlist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/rawjson"
)

// Fuse rewrites a list into one whose only plugin is a fused list of its plugins. All
// other keys, and every byte of the plugins, stay.
func Fuse(raw []byte) ([]byte, error) {
	l, err := Parse(raw, "0.1.0")
	if err != nil {
		return nil, err
	}
	if l.IsFused() {
		return nil, errors.New("plugins: one is a fused list already: split it first")
	}
	if program := ManagerOf(raw); program != "" {
		return nil, fmt.Errorf("%s manages this network, and would not see the bridge and subnet of a fused list: its next network would get them too", program)
	}
	confs, err := rawjson.Get(raw, "plugins")
	if err != nil {
		return nil, err
	}
	if confs == nil || len(l.Plugins) < 2 {
		return nil, errors.New("has one plugin, which is one process as it is")
	}
	capabilities := map[string]bool{}
	for _, p := range l.Plugins {
		for key, wanted := range p.Capabilities {
			if wanted {
				capabilities[key] = true
			}
		}
	}
	fused, err := json.Marshal(struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities,omitempty"`
	}{FusedType, capabilities})
	if err != nil {
		return nil, err
	}
	// The bytes are copied so that numbers and the order of keys do not change.
	fused = slices.Concat([]byte("["), fused[:len(fused)-1], []byte(`,"plugins":`), confs, []byte("}]"))
	return rawjson.Set(raw, "plugins", fused)
}

// IsFused reports whether a plugin of the list is a fused list.
func (l *List) IsFused() bool {
	return slices.ContainsFunc(l.Plugins, func(p Plugin) bool { return p.Fused != nil })
}

// ManagerOf returns the program that wrote a list and reads it again: "podman", "nerdctl" or "". A fused list hides the bridges and
// subnets of its networks from it, so that its next network gets them too.
func ManagerOf(raw []byte) string {
	type plugin struct {
		Bridge  string   `json:"bridge"`
		Plugins []plugin `json:"plugins"`
	}
	var l struct {
		Name          string                     `json:"name"`
		Args          map[string]json.RawMessage `json:"args"`
		NerdctlID     json.RawMessage            `json:"nerdctlID"`
		NerdctlLabels json.RawMessage            `json:"nerdctlLabels"`
		Plugins       []plugin                   `json:"plugins"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return ""
	}
	isPodman := func(p plugin) bool { return strings.HasPrefix(p.Bridge, "cni-podman") }
	switch {
	case l.NerdctlID != nil || l.NerdctlLabels != nil:
		return "nerdctl"
	case l.Name == "podman" || l.Args["podman_labels"] != nil || l.Args["podman_options"] != nil:
		return "podman"
	}
	for _, p := range l.Plugins {
		if isPodman(p) || slices.ContainsFunc(p.Plugins, isPodman) {
			return "podman"
		}
	}
	return ""
}

// Split is the inverse of Fuse: it returns the original list.
func Split(raw []byte) ([]byte, error) {
	l, err := Parse(raw, "0.1.0")
	if err != nil {
		return nil, err
	}
	if !l.IsFused() {
		return nil, errors.New("plugins: none is a fused list")
	}
	for i, p := range l.Plugins {
		if p.Fused == nil {
			continue
		}
		members, err := rawjson.Members(p.Conf)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			if !slices.Contains([]string{"type", "name", "cniVersion", "capabilities", "plugins"}, m.Name) {
				return nil, fmt.Errorf("plugins[%d].%s: would be lost: move it to the list or into its plugins", i, m.Name)
			}
		}
	}
	var confs [][]byte
	for _, p := range l.Unfused().Plugins {
		confs = append(confs, p.Conf)
	}
	return rawjson.Set(raw, "plugins", slices.Concat([]byte("["), bytes.Join(confs, []byte(",")), []byte("]")))
}
