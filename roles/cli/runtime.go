package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// containerRuntime is a container runtime, and its configuration of the directories of plugins.
type containerRuntime struct {
	// name is also the name of its program.
	name string
	// files are patterns of its configuration files. A later file overrides an earlier one.
	files []string
	// keys is a pattern for the keys that list the directories.
	keys string
	// table returns the table of a configuration that has the keys. It is nil if no other table has keys of these names.
	table func(toml []byte) []byte
	// builtin are the directories without such a key.
	builtin []string
	// dropIn is an additional file, which install writes. Without one the administrator edits the first of files.
	dropIn string
	// setting is the text of the configuration, for the first of files as it is.
	setting func(dirs []string, conf []byte) string
	// dirKey and nameKey are the keys for the directory of networks, and for the network that it uses;
	// network is the default of nameKey.
	dirKey, nameKey, network string
	// restart is the command after a change, empty for a program that reads its configuration at each start.
	restart string
}

const maxRuntimeConf = 1 << 20

// dropInMark is the first line of a file that install wrote.
const dropInMark = "# Written by 'cnibox install --runtime', removed by 'cnibox uninstall'.\n"

func containerRuntimes() []containerRuntime {
	list := func(format string) func([]string, []byte) string {
		return func(dirs []string, _ []byte) string { return fmt.Sprintf(format, `"`+strings.Join(dirs, `", "`)+`"`) }
	}
	system := []string{"/usr/local/libexec/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/lib/cni", defaultPluginDir}
	return []containerRuntime{
		{
			name: "podman", keys: "cni_plugin_dirs", builtin: system,
			files:   []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf"},
			dropIn:  "/etc/containers/containers.conf.d/90-cnibox.conf",
			setting: list("[network]\ncni_plugin_dirs = [%s]\n"),
			dirKey:  "network_config_dir", nameKey: "default_network", network: "podman",
		},
		{
			name: "crio", keys: "plugin_dirs?", builtin: []string{defaultPluginDir}, restart: "systemctl restart crio",
			files:   []string{"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"},
			dropIn:  "/etc/crio/crio.conf.d/90-cnibox.conf",
			setting: list("[crio.network]\nplugin_dirs = [%s]\n"),
			dirKey:  "network_dir", nameKey: "cni_default_network",
		},
		{
			name: "containerd", keys: "bin_dirs?", table: containerdTable, builtin: []string{defaultPluginDir}, restart: "systemctl restart containerd",
			files:   []string{"/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml"},
			setting: containerdSetting,
			dirKey:  "conf_dir",
		},
		{
			name: "nerdctl", keys: "cni_path", builtin: system,
			files:   []string{"/etc/nerdctl/nerdctl.toml"},
			setting: func(dirs []string, _ []byte) string { return fmt.Sprintf("cni_path = %q\n", dirs[0]) },
		},
	}
}

func runtimeNames() []string {
	var names []string
	for _, r := range containerRuntimes() {
		names = append(names, r.name)
	}
	return names
}

// findRuntime returns the runtime of a name, or nil for an empty name.
func findRuntime(name string) (*containerRuntime, error) {
	if name == "" {
		return nil, nil
	}
	all := containerRuntimes()
	if i := slices.IndexFunc(all, func(r containerRuntime) bool { return r.name == name }); i >= 0 {
		return &all[i], nil
	}
	return nil, advice.Usagef("cnibox help install", "--runtime %q: want %s", name, strings.Join(runtimeNames(), ", "))
}

// isContainerd3 reports whether a configuration of containerd has version 3 or later.
func isContainerd3(toml []byte) bool {
	return regexp.MustCompile(`(?m)^[ \t]*version[ \t]*=[ \t]*(?:[3-9]|[1-9][0-9])`).Match(toml)
}

// containerdSetting is the text for containerd. Versions 1 and 2 of its configuration have one directory.
func containerdSetting(dirs []string, conf []byte) string {
	if isContainerd3(conf) {
		return "[plugins.\"io.containerd.cri.v1.runtime\".cni]\n  bin_dirs = [\"" + strings.Join(dirs, "\", \"") + "\"]\n"
	}
	return fmt.Sprintf("[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = %q\n", dirs[0])
}

// containerdTable returns the table in which containerd has the settings of CNI. Other tables have keys of the same names, such as
// bin_dir of the image verifier, and versions 3 and later of the configuration ignore the table of version 2.
func containerdTable(toml []byte) []byte {
	plugin := `(?:io\.containerd\.grpc\.v1\.)?cri`
	if isContainerd3(toml) {
		plugin = `io\.containerd\.cri\.v1\.runtime`
	}
	m := regexp.MustCompile(`(?ms)^[ \t]*\[ *plugins *\. *["']?` + plugin + `["']? *\. *cni *\](.*?)(?:^[ \t]*\[|\z)`).FindSubmatch(toml)
	if m == nil {
		return nil
	}
	return m[1]
}

// directories returns the strings of the last assignment of a key in a TOML file. It suffices that
// keys is unique in the files of its runtime.
func directories(toml []byte, keys string) []string {
	assigned := regexp.MustCompile(`(?m)^[ \t]*(?:`+keys+`)[ \t]*=[ \t]*(\[[^\]]*\]|"[^"\n]*"|'[^'\n]*')`).FindAllSubmatch(toml, -1)
	if len(assigned) == 0 {
		return nil
	}
	var dirs []string
	quoted := regexp.MustCompile(`"[^"\n]*"|'[^'\n]*'`)
	for line := range strings.Lines(string(assigned[len(assigned)-1][1])) {
		line, _, _ = strings.Cut(line, "#")
		for _, s := range quoted.FindAllString(line, -1) {
			dirs = append(dirs, s[1:len(s)-1])
		}
	}
	return dirs
}

// searched returns the directories in which the runtime searches plugins. If without is not empty,
// it ignores that file.
func (r *containerRuntime) searched(without string) ([]string, error) {
	dirs := r.builtin
	for _, pattern := range r.files {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if f == without {
				continue
			}
			conf, err := smallfile.Read(f, maxRuntimeConf)
			if err != nil {
				return nil, fmt.Errorf("read configuration of %s: %w", r.name, err)
			}
			if r.table != nil {
				conf = r.table(conf)
			}
			if d := directories(conf, r.keys); len(d) > 0 {
				dirs = d
			}
		}
	}
	return dirs, nil
}

// unused returns the plugins of a directory that the runtime does not use, or will not use when they
// are installed, and the directories in which it searches.
func (r *containerRuntime) unused(dir string, names []string) (unused, searched []string, err error) {
	searched, err = r.searched("")
	if err != nil {
		return nil, nil, err
	}
	until := slices.IndexFunc(searched, func(d string) bool { return filepath.Clean(d) == filepath.Clean(dir) || sameDir(d, dir) })
	if until < 0 {
		return names, searched, nil
	}
	for _, n := range names {
		if _, earlier := findPlugin(searched[:until], n); earlier {
			unused = append(unused, n)
		}
	}
	return unused, searched, nil
}

func sameDir(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// configure makes a runtime use the plugins of a directory, or prints what the administrator has to
// change.
func (p *Process) configure(r *containerRuntime, dir string, names []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	unused, _, err := r.unused(dir, names)
	if err != nil {
		return err
	}
	if len(unused) == 0 {
		p.changed(change{Action: "kept", Name: r.name, Reason: "it uses the plugins in " + dir})
		return p.backend(r)
	}
	// Its other plugins stay available.
	dirs, err := r.searched(r.dropIn)
	if err != nil {
		return err
	}
	dirs = append([]string{dir}, slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return filepath.Clean(d) == dir })...)
	if r.dropIn == "" {
		conf, _ := smallfile.Read(r.files[0], maxRuntimeConf) // usually it exists; searched has reported other errors
		p.changed(change{Action: "edit", Name: r.files[0], Text: r.setting(dirs, conf)})
		p.afterChange(r)
		return problem(fmt.Sprintf("%s belongs to the administrator and was not changed: set the above by hand", r.files[0]))
	}
	if i := slices.IndexFunc(dirs, func(d string) bool { return strings.ContainsAny(d, "\"\\\n") }); i >= 0 {
		return fmt.Errorf("directory %q: cannot be written to %s", dirs[i], r.dropIn)
	}
	if err := os.MkdirAll(filepath.Dir(r.dropIn), 0o755); err != nil {
		return err
	}
	if err := smallfile.Replace(r.dropIn, []byte(dropInMark+r.setting(dirs, nil)), 0o644); err != nil {
		return fmt.Errorf("configure %s: %w", r.name, err)
	}
	p.changed(change{Action: "wrote", Name: r.dropIn})
	p.afterChange(r)
	if unused, searched, err := r.unused(dir, names); err != nil || len(unused) > 0 {
		return errors.Join(err, fmt.Errorf("%s still searches %s: a later file in %s overrides it", r.name, strings.Join(searched, ", "), filepath.Dir(r.dropIn)))
	}
	return p.backend(r)
}

// afterChange names the command that makes a runtime read its configuration again.
func (p *Process) afterChange(r *containerRuntime) {
	if r.restart != "" {
		p.changed(change{Action: "run", Name: r.restart})
	}
}

// value returns the runtime's setting of a key, or a default.
func (r *containerRuntime) value(key, otherwise string) (string, error) {
	if key == "" {
		return otherwise, nil
	}
	conf := *r
	conf.keys, conf.builtin = key, []string{otherwise}
	values, err := conf.searched("")
	if err != nil {
		return "", err
	}
	return values[0], nil
}

// usesNetavark reports whether the runtime is podman and uses netavark instead of CNI. Like podman, it
// reads the configuration, then what podman noted at its first start.
func (r *containerRuntime) usesNetavark() (bool, error) {
	if r.name != "podman" {
		return false, nil
	}
	backend, err := r.value("network_backend", "")
	if err != nil || backend != "" {
		return backend == "netavark", err
	}
	noted, err := smallfile.Read("/var/lib/containers/storage/defaultNetworkBackend", maxRuntimeConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(noted) > 0 {
		return strings.TrimSpace(string(noted)) == "netavark", nil
	}
	_, netavark := findPlugin([]string{"/usr/lib/podman", "/usr/libexec/podman", "/usr/local/lib/podman", "/usr/local/libexec/podman"}, "netavark")
	return netavark, nil
}

// hasCRI reports whether the runtime attaches pods. Docker's packages configure containerd without its plugin for that, and kubelet
// does not run with it.
func (r *containerRuntime) hasCRI() (bool, error) {
	if r.name != "containerd" || kubeletRuntime() != "" {
		return true, nil
	}
	conf := *r
	conf.keys, conf.table, conf.builtin = "disabled_plugins", nil, nil
	disabled, err := conf.searched("")
	return !slices.ContainsFunc(disabled, func(name string) bool {
		return slices.Contains([]string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}, name)
	}), err
}

// backend warns if podman uses netavark.
func (p *Process) backend(r *containerRuntime) error {
	netavark, err := r.usesNetavark()
	if netavark {
		p.warn("podman uses netavark, which runs no CNI plugin: set network_backend = \"cni\" in /etc/containers/containers.conf, see docs/runtimes.md")
	}
	return err
}

// warnUnused warns if a runtime of this node does not use the installed plugins.
func (p *Process) warnUnused(dir string, names []string) {
	for _, r := range containerRuntimes() {
		if _, here := findPlugin(filepath.SplitList(p.getenv("PATH")), r.name); !here {
			continue
		}
		unused, searched, err := r.unused(dir, names)
		switch {
		case err != nil:
			p.warn(err.Error())
		case len(unused) > 0:
			p.warn(fmt.Sprintf("%s does not use %d of the %d plugins in %s, because it searches %s: run '%s'",
				r.name, len(unused), len(names), dir, strings.Join(searched, ", "), installText(dir, r.name)))
		}
	}
}

// removeDropIns removes the files that install wrote for the plugins of a directory.
func (p *Process) removeDropIns(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, r := range containerRuntimes() {
		if r.dropIn == "" {
			continue
		}
		conf, err := smallfile.Read(r.dropIn, maxRuntimeConf)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if d := directories(conf, r.keys); !strings.HasPrefix(string(conf), dropInMark) || len(d) == 0 || d[0] != dir {
			continue
		}
		if err := os.Remove(r.dropIn); err != nil {
			return err
		}
		p.changed(change{Action: "removed", Name: r.dropIn})
		p.afterChange(&r)
	}
	return nil
}

// networkFile is a network that install places after the plugins.
type networkFile struct {
	path    string
	content []byte
}

// readNetworkFile reads a network's file and returns it with its place in a directory of networks.
func (p *Process) readNetworkFile(file, confDir string) (*networkFile, error) {
	if file == "" {
		return nil, nil
	}
	name := filepath.Base(file)
	if filepath.Ext(name) != ".conflist" {
		return nil, advice.Usagef("cnibox help install", "--conflist %q: want a file whose name ends in .conflist", file)
	}
	content, err := p.readFile(file, lint.MaxSize)
	return &networkFile{filepath.Join(confDir, name), content}, err
}

// place checks the network with the installed plugins and writes its file.
func (n *networkFile) place(p *Process, dir string) error {
	found := p.linter(dir).Lint(n.path, n.content)
	for _, f := range found {
		fmt.Fprintln(p.Stderr, printable(f.String()))
	}
	isMissing := func(typ string) bool {
		_, found := findPlugin([]string{dir}, typ)
		return !found
	}
	if slices.ContainsFunc(found, isFault) || slices.ContainsFunc(lint.Types(n.content), isMissing) {
		return fmt.Errorf("%s was not written: %w", n.path, errDifferent)
	}
	if err := os.MkdirAll(filepath.Dir(n.path), 0o755); err != nil {
		return advice.With(err, "run it as root, or choose a directory with --conf-dir")
	}
	if err := smallfile.ReplaceSynced(n.path, n.content, 0o600); err != nil {
		return advice.With(fmt.Errorf("write network: %w", err), "run it as root, or choose a directory with --conf-dir")
	}
	p.changed(change{Action: "wrote", Name: n.path})
	entries, err := os.ReadDir(filepath.Dir(n.path)) // sorted
	for _, e := range entries {
		if e.Name() < filepath.Base(n.path) && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			p.warn(fmt.Sprintf("containerd and CRI-O attach pods to the first network of %s, which is %s: remove it, or give this file an earlier name",
				printable(filepath.Dir(n.path)), printable(e.Name())))
			break
		}
	}
	return err
}

// warn prints a warning of install.
func (p *Process) warn(text string) {
	fmt.Fprintf(p.Stderr, "%s: install: warning: %s\n", appName, printable(text))
}
