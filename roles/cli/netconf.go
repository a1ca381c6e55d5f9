package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/rawjson"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// netnsDir is the directory of the namespaces of `ip netns`.
const netnsDir = "/var/run/netns"

// network is a network's file.
type network struct {
	*netlist.List
	// raw is the list as read, with the plugins of its directory.
	raw json.RawMessage
}

// loadNetwork reads a list, or one plugin's file as a list of one. As a runtime does, it
// adds the plugins in the directory that has the network's name.
func (p *Process) loadNetwork(file string) (*network, error) {
	data, err := p.readFile(file, lint.MaxSize)
	if err != nil {
		return nil, err
	}
	n := new(network)
	n.raw, err = p.wholeList(file, data)
	if err == nil {
		n.List, err = netlist.Parse(n.raw, "0.1.0") // the meaning of a missing version
	}
	if err != nil {
		return nil, advice.With(fmt.Errorf("%s: %w", file, err), "cnibox lint "+file)
	}
	return n, nil
}

// wholeList returns a file's list with the plugins of its directory.
func (p *Process) wholeList(file string, data []byte) (json.RawMessage, error) {
	var top struct {
		Name       string            `json:"name"`
		CNIVersion string            `json:"cniVersion"`
		Type       string            `json:"type"`
		Plugins    []json.RawMessage `json:"plugins"`
		Inlined    json.RawMessage   `json:"loadOnlyInlinedPlugins"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, roles.Mismatch(err)
	}
	if top.Plugins == nil && top.Type != "" {
		return json.Marshal(map[string]any{
			"name": top.Name, "cniVersion": top.CNIVersion, "plugins": []json.RawMessage{data},
		})
	}
	var more []json.RawMessage
	if !strings.EqualFold(strings.Trim(string(top.Inlined), `"`), "true") && file != "-" && roles.IsName(top.Name) {
		var err error
		if more, err = p.pluginFiles(filepath.Join(filepath.Dir(file), top.Name)); err != nil {
			return nil, err
		}
	}
	if len(top.Plugins)+len(more) == 0 {
		return nil, errors.New("has no plugins")
	}
	if len(more) == 0 {
		return data, nil
	}
	all, err := json.Marshal(append(top.Plugins, more...))
	if err != nil {
		return nil, err
	}
	return rawjson.Set(data, "plugins", all)
}

// pluginFiles returns the plugins of a list's directory, in the order of the file names.
func (p *Process) pluginFiles(dir string) ([]json.RawMessage, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var confs []json.RawMessage
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != ".conf" {
			continue
		}
		conf, err := p.readFile(filepath.Join(dir, e.Name()), lint.MaxSize)
		if err == nil && !json.Valid(conf) {
			err = fmt.Errorf("%s: is not JSON", filepath.Join(dir, e.Name()))
		}
		if err != nil {
			return nil, err
		}
		confs = append(confs, conf)
	}
	return confs, nil
}

// netnsPath returns the path for a name of `ip netns`, and a path unchanged.
func netnsPath(s string) string {
	if s == "" || strings.Contains(s, "/") {
		return s
	}
	return filepath.Join(netnsDir, s)
}
