package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

func (p *Process) lintCommand() *cli.Command {
	return &cli.Command{
		Name:      "lint",
		Usage:     "check network configurations, or explain their keys",
		ArgsUsage: "FILE|DIR… (- is stdin), or with --explain [FILE|ROLE…]",
		Description: `Reports every fault with its place: JSON, versions, values that a role refuses,
plugins that are not found, the order of the chain, two networks with one name, or with
bridges of one subnet. Keys that no plugin reads are warnings. Of a
NetworkAttachmentDefinition, in YAML or JSON, it checks spec.config. Of a directory with
those below, and of several files, it reads those that end in .conf, .conflist, .json,
.yaml or .yml, and passes over those in other directories that are no networks. Exits with 3 if there
is a fault, with 0 if there are only warnings.

examples:
  cnibox lint /etc/cni/net.d
  cnibox lint --explain bridge`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "path", Usage: "plugin directories, separated by colons ($CNI_PATH, else " + defaultPluginDir + ")"},
			&cli.BoolFlag{Name: "explain", Usage: "list the keys of the roles, with types and meaning"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("explain") {
				return p.explain(c)
			}
			if !c.Args().Present() {
				return advice.Usagef("cnibox lint /etc/cni/net.d", "no file given")
			}
			return p.lint(c)
		},
	}
}

func (p *Process) lint(c *cli.Context) error {
	l := p.linter(c.String("path"))
	found := []lint.Finding{}
	var errs []error
	files, err := configurations(c.Args().Slice())
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no file ends in %s: name one file to check it with any name", strings.Join(c.Args().Slice(), " "), strings.Join(confExtensions(), ", "))
	}
	if err != nil {
		errs = append(errs, err)
	}
	for _, file := range files {
		data, err := p.readFile(file.path, lint.MaxSize)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if file.listed && !lint.IsNetwork(data) {
			continue
		}
		found = append(found, l.Lint(file.path, data)...)
	}
	if err := p.writeFindings(found, c.Bool("json"), p.style(c)); err != nil {
		return err
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if slices.ContainsFunc(found, isFault) {
		return errDifferent
	}
	return nil
}

func confExtensions() []string { return []string{".conf", ".conflist", ".json", ".yaml", ".yml"} }

// configuration is a file to check. listed means that it can be something else than a network: a runtime reads .conf, .conflist and .json
// of its own directory, and the directories below have what other plugins read.
type configuration struct {
	path   string
	listed bool
}

// configurations replaces a directory by the configurations in it and below. Of several arguments, those that
// are not configurations are left out: a shell pattern such as /etc/cni/net.d/* also matches
// cni.lock and directories of other programs.
func configurations(args []string) ([]configuration, error) {
	isConf := func(name string) bool { return slices.Contains(confExtensions(), filepath.Ext(name)) }
	var files []configuration
	var errs []error
	for _, arg := range args {
		switch fi, err := os.Stat(arg); {
		case err == nil && fi.IsDir() && len(args) == 1:
			errs = append(errs, filepath.WalkDir(arg+"/", func(path string, e fs.DirEntry, err error) error {
				if err == nil && isConf(path) && !e.IsDir() {
					isYAML := strings.HasSuffix(path, "ml")
					files = append(files, configuration{path, isYAML || filepath.Dir(path) != filepath.Clean(arg)})
				}
				return err
			}))
		case len(args) == 1 || arg == "-" || err != nil || !fi.IsDir() && isConf(arg):
			files = append(files, configuration{path: arg})
		}
	}
	return files, errors.Join(errs...)
}

func (p *Process) linter(path string) *lint.Linter {
	return &lint.Linter{Table: p.Table, Find: p.finder(p.pluginPath(path))}
}

func isFault(f lint.Finding) bool { return f.Severity == lint.Fault }

// lintHint returns advice for a configuration that a plugin rejected. lint does not report what
// depends on the node, such as the MTU of a master.
func (p *Process) lintHint(c *cli.Context) string {
	file := c.Args().First()
	data, err := p.readFile(file, lint.MaxSize)
	if err != nil || !slices.ContainsFunc(p.linter(c.String("cni-path")).Lint(file, data), isFault) {
		return ""
	}
	return "cnibox lint " + file
}

// warnUnknownKeys warns about keys that no plugin reads, as lint does: ADD ignores them. A plugin
// that a runtime calls does not warn, because the runtime shows nothing of an ADD that succeeds.
func (p *Process) warnUnknownKeys(c *cli.Context) {
	file := c.Args().First()
	data, err := p.readFile(file, lint.MaxSize)
	if err != nil || file == "-" {
		return
	}
	for _, f := range p.linter(c.String("cni-path")).Lint(file, data) {
		if f.UnknownKey {
			fmt.Fprintf(p.Stderr, "cnibox: %s: %s\n", c.Command.Name, printable(f.String()))
		}
	}
}

func (p *Process) writeFindings(found []lint.Finding, asJSON bool, s style) error {
	if asJSON {
		return writeJSON(p.Stdout, found)
	}
	for _, f := range found {
		code := yellow
		if f.Severity == lint.Fault {
			code = red
		}
		line := strings.Replace(printable(f.String()), string(f.Severity)+":", s.paint(code, string(f.Severity))+":", 1)
		if _, err := fmt.Fprintln(p.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// readFile reads a configuration. "-" is stdin. The size is limited, so that a device of endless
// length is not a problem.
func (p *Process) readFile(name string, limit int64) ([]byte, error) {
	if name == "-" {
		return readLimited(name, p.Stdin, limit)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("read %q: no regular file", name))
	}
	return readLimited(name, f, limit)
}

func readLimited(name string, r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("read %q: larger than %d bytes", name, limit)
	}
	return data, err
}

// pluginPath returns the directories of plugins.
func (p *Process) pluginPath(flag string) []string {
	for _, s := range []string{flag, p.getenv("CNI_PATH")} {
		if s != "" {
			return filepath.SplitList(s)
		}
	}
	return []string{defaultPluginDir}
}

// findPlugin searches for a plugin like runtimes do: the first regular file of that name, also
// through symbolic links.
func findPlugin(dirs []string, typ string) (dir string, found bool) {
	for _, dir := range dirs {
		if fi, err := os.Stat(filepath.Join(dir, typ)); err == nil && fi.Mode().IsRegular() {
			return dir, true
		}
	}
	return "", false
}

// finder also reports whether a plugin is this program.
func (p *Process) finder(dirs []string) func(string) (string, bool, bool) {
	return func(typ string) (string, bool, bool) {
		dir, found := findPlugin(dirs, typ)
		if !found {
			return "", false, false
		}
		f, err := plugindir.Open(dir, p.Executable).Look(typ)
		return filepath.Join(dir, typ), err == nil && f.Standing == plugindir.Ours, true
	}
}

// explain prints the keys of roles: the given ones, those of the given files, or all.
func (p *Process) explain(c *cli.Context) error {
	chosen, err := p.explained(c.Args().Slice())
	if err != nil {
		return err
	}
	s := p.style(c)
	all := map[string][]lint.Key{}
	for i, r := range chosen {
		if c.Bool("json") {
			all[r.Name()] = lint.Explain(r)
			continue
		}
		if i > 0 {
			fmt.Fprintln(p.Stdout)
		}
		p.writeKeys(r, s)
	}
	if c.Bool("json") {
		return writeJSON(p.Stdout, all)
	}
	return nil
}

// writeKeys prints a role with the keys of its configuration.
func (p *Process) writeKeys(r *roles.Role, s style) {
	fmt.Fprintf(p.Stdout, "%s: %s\n", s.paint(bold, r.Name()), r.Summary)
	for _, k := range lint.Explain(r) {
		fmt.Fprintf(p.Stdout, "  %s (%s)\n", s.paint(green, k.Path), k.Type)
		if k.Doc != "" {
			fmt.Fprintf(p.Stdout, "      %s\n", k.Doc)
		}
	}
}

// explained returns the roles for the arguments.
func (p *Process) explained(args []string) ([]*roles.Role, error) {
	var out []*roles.Role
	seen := map[string]bool{}
	add := func(r *roles.Role) {
		if r.Conf != nil && !seen[r.Name()] {
			seen[r.Name()] = true
			out = append(out, r)
		}
	}
	if len(args) == 0 {
		for _, r := range p.Table.Roles() {
			add(&r)
		}
	}
	for _, a := range args {
		if r, ok := p.Table.Lookup(a); ok {
			add(r)
			continue
		}
		data, err := p.readFile(a, lint.MaxSize)
		if err != nil {
			return nil, advice.With(err, "name a role (cnibox list) or a file")
		}
		for _, typ := range lint.Types(data) {
			if r, ok := p.Table.Lookup(typ); ok {
				add(r)
			}
		}
	}
	return out, nil
}
