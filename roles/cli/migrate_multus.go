package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// Multus's plugin is either "multus", which does everything itself, or "multus-shim", which
// asks the daemon of a container. The network of the second has the paths of that container, whose host
// directory is /host, and no kubeconfig.

const (
	multusShim       = "multus-shim"
	multusDaemon     = "multus-daemon"
	multusHostDir    = "/host"
	multusKubeconfig = "multus.d/multus.kubeconfig" // in the directory of networks
)

// savedFile is a file that a migration rewrote.
type savedFile struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
}

// lookMultus are the steps from Multus. The pods that it attached are taken over from its cache, by
// DEL and CHECK.
func (m *migrator) lookMultus() ([]step, error) {
	var networks []step
	found := false
	err := m.eachNetwork(func(file string, raw []byte) error {
		types := lint.Types(raw)
		found = found || slices.Contains(types, "multus") || slices.Contains(types, multusShim)
		if !slices.Contains(types, multusShim) {
			return nil
		}
		rewritten, err := m.withoutShim(raw)
		networks = append(networks, step{
			Name: "network " + filepath.Base(file), State: stepTodo, What: fmt.Sprintf("write the type multus into %s, in place of %s", file, multusShim),
			Why: "cnibox needs no daemon", do: func() error { return m.rewrite(savedFile{file, raw}, rewritten) },
		})
		return withFile(file, err)
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("there is no Multus on this node: no network in %s has the type multus or %s", m.record.ConfDir, multusShim)
	}
	for _, f := range m.record.Files {
		if !slices.ContainsFunc(networks, func(s step) bool { return s.Name == f.stepName() }) {
			networks = append(networks, step{Name: f.stepName(), State: stepDone, What: f.Path + " has the type multus"})
		}
	}
	daemon, err := findProcess(multusDaemon)
	if err != nil {
		return nil, err
	}
	steps, err := m.pluginSteps()
	if err != nil {
		return nil, err
	}
	stop := step{Name: "daemon", State: stepDone, What: multusDaemon + " does not run", Why: "it would write the network again"}
	if daemon != nil {
		stop.State, stop.What = stepManual, fmt.Sprintf("stop %s, process %d", multusDaemon, daemon.pid)
	}
	return slices.Concat(steps, []step{stop}, networks), nil
}

// stepName returns the name of the step that rewrites or restores the file.
func (f *savedFile) stepName() string { return "network " + filepath.Base(f.Path) }

// withFile adds a file's name to an error.
func withFile(file string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("network %s: %w", file, err)
}

// withoutShim returns a network of multus-shim for multus.
func (m *migrator) withoutShim(raw []byte) ([]byte, error) {
	var list map[string]json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	all := []map[string]json.RawMessage{list} // a single plugin
	plugins, isList := list["plugins"]
	if isList {
		if err := json.Unmarshal(plugins, &all); err != nil {
			return nil, err
		}
	}
	for _, plugin := range all {
		if err := m.replaceShim(plugin); err != nil {
			return nil, err
		}
	}
	if isList {
		var err error
		list["plugins"], err = json.Marshal(all)
		if err != nil {
			return nil, err
		}
	}
	return json.MarshalIndent(list, "", "  ")
}

// replaceShim changes the keys of a plugin of type multus-shim.
func (m *migrator) replaceShim(plugin map[string]json.RawMessage) error {
	var typ, cluster string
	if json.Unmarshal(plugin["type"], &typ) != nil || typ != multusShim {
		return nil
	}
	plugin["type"] = json.RawMessage(`"multus"`)
	var err error
	if raw := plugin["clusterNetwork"]; raw != nil {
		if err := json.Unmarshal(raw, &cluster); err != nil {
			return fmt.Errorf("clusterNetwork: %w", err)
		}
		if strings.HasPrefix(cluster, multusHostDir+"/") {
			cluster = strings.TrimPrefix(cluster, multusHostDir)
		}
		plugin["clusterNetwork"], err = json.Marshal(cluster)
		if err != nil {
			return err
		}
	}
	if plugin["kubeconfig"] != nil {
		return nil
	}
	file := filepath.Join(m.record.ConfDir, multusKubeconfig)
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("it has no kubeconfig, and %s cannot be used: write the key \"kubeconfig\" into the network first: %w", file, err)
	}
	plugin["kubeconfig"], err = json.Marshal(file)
	return err
}

// rewrite replaces a network and keeps the old content in the record.
func (m *migrator) rewrite(old savedFile, content []byte) error {
	found := m.linter(m.dir).Lint(old.Path, content)
	if i := slices.IndexFunc(found, isFault); i >= 0 {
		return fmt.Errorf("%s was not written: %s", old.Path, found[i].String())
	}
	if !slices.ContainsFunc(m.record.Files, func(f savedFile) bool { return f.Path == old.Path }) {
		m.record.Files = append(m.record.Files, old)
		if err := m.save(); err != nil {
			return err
		}
	}
	if err := smallfile.Rewrite(old.Path, append(content, '\n')); err != nil {
		return err
	}
	m.changed(change{Action: "wrote", Name: old.Path})
	return nil
}

// backMultus are the steps to Multus.
func (m *migrator) backMultus() ([]step, error) {
	restore, err := m.restoreStep()
	if err != nil {
		return nil, err
	}
	steps := []step{restore}
	for _, f := range m.record.Files {
		now, err := smallfile.Read(f.Path, lint.MaxSize)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		s := step{Name: f.stepName(), State: stepDone, What: f.Path + " is Multus's again"}
		if !bytes.Equal(now, f.Content) {
			s.State, s.What, s.do = stepTodo, "restore "+f.Path, func() error {
				return smallfile.ReplaceSynced(f.Path, f.Content, 0o600)
			}
		}
		steps = append(steps, s)
	}
	if len(m.record.Files) > 0 {
		start := step{Name: "daemon", State: stepDone, What: multusDaemon + " runs"}
		daemon, err := findProcess(multusDaemon)
		if err != nil {
			return nil, err
		}
		if daemon == nil {
			start.State, start.What, start.Why = stepManual, "start "+multusDaemon, multusShim+" needs it"
		}
		steps = append(steps, start)
	}
	return append(steps, m.drainStep()), nil
}
