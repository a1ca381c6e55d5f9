package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/lint"
)

// netnsDir is where `ip netns` keeps namespaces.
const netnsDir = "/var/run/netns"

// loadNetwork reads a list, or one plugin's file as a list of one, the way a
// runtime does: plugins in a directory named like the network are added.
func (p *Process) loadNetwork(file string) (*libcni.NetworkConfigList, error) {
	data, err := p.readFile(file, lint.MaxSize)
	if err != nil {
		return nil, err
	}
	list, err := parseNetwork(file, data)
	if err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", file, err), "cnibox lint "+file)
	}
	if list.CNIVersion == "" {
		list.CNIVersion = "0.1.0" // what plugins take a missing one for
	}
	if err := checkNetwork(list); err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", file, err), "cnibox lint "+file)
	}
	return list, nil
}

// checkNetwork refuses what every plugin would refuse.
func checkNetwork(list *libcni.NetworkConfigList) error {
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return fmt.Errorf("name: %q is not the name of a network", list.Name)
	}
	if all := version.All.SupportedVersions(); !slices.Contains(all, list.CNIVersion) {
		return fmt.Errorf("cniVersion: %q is none of %s", list.CNIVersion, strings.Join(all, ", "))
	}
	return nil
}

func parseNetwork(file string, data []byte) (*libcni.NetworkConfigList, error) {
	var top struct {
		Name       string          `json:"name"`
		CNIVersion string          `json:"cniVersion"`
		Type       string          `json:"type"`
		Plugins    json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, roles.Mismatch(err)
	}
	if top.Plugins == nil && top.Type != "" {
		list, err := json.Marshal(map[string]any{
			"name": top.Name, "cniVersion": top.CNIVersion, "plugins": []json.RawMessage{data},
		})
		if err != nil {
			return nil, err
		}
		return libcni.NetworkConfFromBytes(list)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	if !list.LoadOnlyInlinedPlugins && file != "-" && safeName(list.Name) {
		more, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(file), list.Name)
		if err != nil {
			return nil, err
		}
		list.Plugins = append(list.Plugins, more...)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("has no plugins")
	}
	return list, nil
}

// safeName tells whether a network's name may be part of a path.
func safeName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// netnsPath turns a name of `ip netns` into its path; a path stays.
func netnsPath(s string) string {
	if s == "" || strings.Contains(s, "/") {
		return s
	}
	return filepath.Join(netnsDir, s)
}
