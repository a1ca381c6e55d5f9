package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/call/plugindir"
)

// maxNetwork is the maximum size of a network's file in bytes.
const maxNetwork = 1 << 20

// installation is what an agent in a container places on its node: the plugins, and the network that the
// container runtime attaches pods to. Without a network the runtime reports the node as not ready.
type installation struct {
	// dir is the plugin directory or empty, executable the program to place in it.
	dir, executable string
	plugins         []string
	// source is the network's file, network is its place.
	source, network string
	// hasPlugins and hasNetwork are true until a file may have changed.
	hasPlugins, hasNetwork bool
}

// paths are the files that are placed again if another program replaces or removes them.
func (s *settings) paths() (paths []string) {
	if s.cniBinDir != "" {
		for _, name := range append(s.cniPlugins, plugindir.Binary) {
			paths = append(paths, filepath.Join(s.cniBinDir, name))
		}
	}
	return append(paths, s.networkPath())
}

// networkPath returns the place of the network, or "".
func (s *settings) networkPath() string {
	if s.cniConf == "" {
		return ""
	}
	return filepath.Join(s.cniConfDir, filepath.Base(s.cniConf))
}

// newInstallation returns an installation of which nothing is placed yet.
func newInstallation(s *settings, executable string) *installation {
	return &installation{dir: s.cniBinDir, executable: executable, plugins: s.cniPlugins, source: s.cniConf, network: s.networkPath()}
}

// place places what is missing or differs, the network last. Other programs' plugins of the same names
// are kept aside until remove.
func (i *installation) place(report func(plugindir.Change)) error {
	if i.dir != "" && !i.hasPlugins {
		if _, err := plugindir.Open(i.dir, i.executable).Install(i.plugins, plugindir.Symbolic, true, report); err != nil {
			return fmt.Errorf("install plugins: %w", err)
		}
		i.hasPlugins = true
	}
	if i.network == "" || i.hasNetwork {
		return nil
	}
	content, err := smallfile.Read(i.source, maxNetwork)
	if err != nil {
		return fmt.Errorf("read network: %w", err)
	}
	if _, err := netlist.Parse(content, ""); err != nil {
		return fmt.Errorf("network %s: %w: correct it, 'cnibox lint' shows the position", i.source, err)
	}
	if have, err := smallfile.ReadOwn(i.network, maxNetwork); err != nil || !bytes.Equal(have, content) {
		if err := os.MkdirAll(filepath.Dir(i.network), 0o755); err != nil { //nolint:gosec // runtimes may run as another user
			return err
		}
		if err := smallfile.ReplaceSynced(i.network, content, 0o600); err != nil {
			return fmt.Errorf("place network: %w", err)
		}
		report(plugindir.Change{Action: "placed", Name: i.network})
	}
	i.hasNetwork = true
	return nil
}

// removeNetwork removes the network, so that the runtime attaches no more pods to it.
func (i *installation) removeNetwork() error {
	if i.network == "" {
		return nil
	}
	i.hasNetwork = false
	if err := os.Remove(i.network); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network: %w", err)
	}
	return nil
}

// removePlugins removes every file of this program, and restores those that it had replaced.
func (i *installation) removePlugins(report func(plugindir.Change)) error {
	if i.dir == "" {
		return nil
	}
	d := plugindir.Open(i.dir, i.executable)
	names, err := d.Files()
	if err != nil {
		return err
	}
	return d.Remove(names, report)
}
