package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// maxReport is the maximum size of a report in bytes.
const maxReport = 64 << 20

func (p *Process) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "find what is wrong with this node's networks, and the command that mends it",
		Description: `Reads networks, plugins, records, interfaces, rules, settings and the agent's status, and
changes nothing. It needs no agent and no API server. docs/doctor.md lists the checks.
--fix does what is safe of a report: it restores cnibox's own objects and removes what
ended containers left, if the finding still holds. --cluster merges the reports of many
nodes. Exits with 3 if there is an error, with 4 if there are only warnings.

examples:
  cnibox doctor                     the findings, the worst first
  cnibox doctor --json > report     for programs, and for --fix
  cnibox doctor --fix report
  cnibox doctor --cluster reports   a directory with one report a node`,
		Flags: append(tableFlags(),
			&cli.StringFlag{Name: "fix", Usage: "mend what is safe of a report"},
			&cli.StringFlag{Name: "cluster", Usage: "merge the reports in a directory"},
		),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			switch {
			case c.IsSet("cluster") && c.IsSet("fix"):
				return advice.Usagef("cnibox help doctor", "--fix and --cluster exclude each other: a report is for the node that made it")
			case c.IsSet("cluster"):
				return p.mergeReports(c, c.String("cluster"))
			case p.View == nil && os.Geteuid() != 0:
				return advice.With(errors.New("only root can read a node"), "run it as root")
			case c.IsSet("fix"):
				return p.onNode(p.fixReport)(c)
			}
			return p.onNode(p.diagnose)(c)
		},
	}
}

// diagnose is `cnibox doctor`.
func (p *Process) diagnose(c *cli.Context, h *roles.Host) error {
	r, err := p.examine(c.Context, h)
	if err != nil {
		return err
	}
	err = p.output(c, r, func(s style) error { return p.writeReport(r, s) })
	return cmp.Or(err, severityError(r.Worst()))
}

// severityError returns the error for the exit code of a severity.
func severityError(s doctor.Severity) error {
	switch s {
	case doctor.Error:
		return errDifferent
	case doctor.Warning:
		return errWarnings
	}
	return nil
}

// settings are those of the node's runtimes. Home is the directory of this program's plugins.
type settings struct {
	Runtimes  []doctor.Runtime
	Netavark  bool
	Home      string
	CacheDirs []string
}

// examine runs all checks.
func (p *Process) examine(ctx context.Context, h *roles.Host) (*doctor.Report, error) {
	known, done := p.view(ctx, h)
	defer done()
	is, err := view.Ask(known, "runtimes", func() (s settings, err error) {
		s.Runtimes, s.Netavark, err = p.runtimes()
		s.Home, s.CacheDirs = p.pluginHome(s.Runtimes), p.cacheDirs()
		return s, err
	})
	if err != nil {
		return nil, err
	}
	calls, _ := view.Ask(known, "calls", func() ([]doctor.Call, error) { return slowCalls(runningCalls()), nil })
	f := doctor.Read(ctx, h, known, doctor.Options{
		Table: p.Table, Program: p.Version, Runtimes: is.Runtimes, Netavark: is.Netavark, CacheDirs: is.CacheDirs, Look: p.lookPlugin,
		Home: is.Home, Install: installText(is.Home, ""), Calls: calls,
		Audit: func(ctx context.Context, dump *store.Dump) ([]doctor.Difference, error) {
			a, err := p.newAuditor(ctx, h, "", dump)
			if err != nil {
				return nil, err
			}
			all, err := a.all(ctx) // with an error those that were compared before
			errs := []error{err}
			for _, one := range all {
				if one.busy != "" && len(one.found) == 0 {
					errs = append(errs, fmt.Errorf("not compared: %s: %s", one.Describe(), one.busy))
				}
			}
			var out []doctor.Difference
			for _, d := range differences(all) {
				if d.Fix == fixPath || d.Object == "call" {
					continue // the checks of plugins and of calls report it
				}
				fix := d.Fix
				if fix == fixRestart || fix == fixRemove {
					fix = ""
				}
				out = append(out, doctor.Difference{Key: d.Key, Pod: d.Pod, Of: d.of, Object: d.Object, Want: d.Want, Have: d.Have, Fix: fix})
			}
			return out, errors.Join(errs...)
		},
	})
	return doctor.Diagnose(f), nil
}

// runtimes returns the container runtimes of the node. Without one it returns a runtime with the
// defaults of all.
func (p *Process) runtimes() (all []doctor.Runtime, netavark bool, err error) {
	for _, r := range containerRuntimes() {
		if _, here := findPlugin(filepath.SplitList(p.getenv("PATH")), r.name); !here || r.dirKey == "" {
			continue
		}
		one := doctor.Runtime{Name: r.name, SkipsFaulty: r.name != "containerd", ListsOnly: r.name == "podman"}
		var errs [4]error
		one.Dir, errs[0] = r.value(r.dirKey, defaultConfDir)
		one.Default, errs[1] = r.value(r.nameKey, r.network)
		one.PluginDirs, errs[2] = r.searched("")
		uses, err := r.usesNetavark()
		errs[3] = err
		if err := errors.Join(errs[:]...); err != nil {
			return nil, false, err
		}
		one.BuiltIn = r.name == "podman" && one.Default == r.network
		attaches, err := r.hasCRI()
		if err != nil {
			return nil, false, err
		}
		if netavark = netavark || uses; !uses && attaches {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		dirs := pluginDirs()
		if p.getenv("CNI_PATH") != "" {
			dirs = p.pluginPath("")
		}
		all = append(all, doctor.Runtime{Name: "any runtime", Dir: defaultConfDir, BuiltIn: true, PluginDirs: dirs})
	}
	home := p.pluginHome(all)
	for i := range all {
		all[i].Install = installText(home, all[i].Name)
	}
	if name := kubeletRuntime(); name != "" {
		all = append(all, doctor.Runtime{Name: "kubelet", Delegate: name})
	}
	return all, netavark, nil
}

// kubeletRuntime returns the name of the runtime that kubelet uses, or "" without kubelet.
func kubeletRuntime() string {
	endpoint := regexp.MustCompile(`(?:containerRuntimeEndpoint: *|--container-runtime-endpoint=)(\S+)`)
	name := ""
	for _, file := range []string{"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env"} {
		raw, err := smallfile.Read(file, maxRuntimeConf)
		if err != nil {
			continue
		}
		name = cmp.Or(name, "containerd")
		if m := endpoint.FindSubmatch(raw); m != nil && strings.Contains(string(m[1]), "crio") {
			name = "crio"
		}
	}
	return name
}

// lookPlugin finds the file of a plugin as a runtime does.
func (p *Process) lookPlugin(dirs []string, typ string) doctor.Plugin {
	for _, dir := range dirs {
		path := filepath.Join(dir, typ)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		d := plugindir.Open(dir, p.Executable)
		f, err := d.Look(typ)
		if err != nil || f.Standing == plugindir.Blocked || f.Standing == plugindir.Absent {
			continue
		}
		out := doctor.Plugin{Path: path, Ours: f.Standing == plugindir.Ours, Program: f.What}
		out.Replaced = !out.Ours && d.WasReplaced(typ)
		fi, err := os.Stat(path)
		if err != nil {
			out.Dangling = true
			return out
		}
		out.Executable = fi.Mode().Perm()&0o111 != 0
		out.Writable, out.WritablePath = smallfile.Trusted(path, fi), path
		if parent, err := os.Stat(dir); err == nil && out.Writable == nil {
			out.Writable, out.WritablePath = smallfile.Trusted(dir, parent), dir
		}
		if what, isOurs, err := plugindir.Identify(path); err == nil && isOurs {
			out.Program = what
		}
		self, err := os.Stat(p.Executable)
		out.Current = err == nil && os.SameFile(self, fi) || out.Program == appName+" "+p.Version
		return out
	}
	return doctor.Plugin{}
}

// writeReport prints a report.
func (p *Process) writeReport(r *doctor.Report, s style) error {
	for _, u := range r.Networks {
		if u.Network != "" {
			fmt.Fprintf(p.Stdout, "%s uses %s of %s: %s\n", printable(u.Runtime), s.paint(bold, printable(u.Network)), printable(u.File), printable(u.Why))
		} else {
			fmt.Fprintf(p.Stdout, "%s: %s\n", printable(u.Runtime), printable(u.Why))
		}
	}
	if len(r.Findings) == 0 {
		_, err := fmt.Fprintf(p.Stdout, "all %d checks passed\n", r.Passed)
		return err
	}
	t := findingTable("SEVERITY", "CHECK", "OBJECT", "WHAT", "EVIDENCE", "NEXT")
	var all []finding
	for _, f := range r.Findings {
		t.add(string(f.Severity), f.ID, f.Object, f.What, f.Evidence, f.Next())
		all = append(all, finding{Finding: f})
	}
	if s.prose {
		fmt.Fprintln(p.Stdout)
		if err := p.writeProse(all, s); err != nil {
			return err
		}
	} else if err := t.write(p.Stdout, s); err != nil {
		return err
	}
	fmt.Fprintf(p.Stderr, "cnibox: doctor: %s; the other %d checks passed\n", counted(len(r.Findings), "finding"), r.Passed)
	return nil
}

// findingTable returns a table with the severity in the first column.
func findingTable(head ...string) *table {
	return &table{head: head, paint: func(column int, cell string) string {
		if column > 0 {
			return ""
		}
		return severityColour(cell)
	}}
}

// readReport reads what `cnibox doctor --json` printed.
func (p *Process) readReport(file string) (*doctor.Report, error) {
	raw, err := p.readFile(file, maxReport)
	if err != nil {
		return nil, err
	}
	r := new(doctor.Report)
	if err := json.Unmarshal(raw, r); err != nil || r.Findings == nil {
		return nil, advice.With(fmt.Errorf("%s: is no report: %w", file, roles.Mismatch(err)), "cnibox doctor --json > "+file)
	}
	return r, nil
}

// mergeReports is `cnibox doctor --cluster`.
func (p *Process) mergeReports(c *cli.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var reports []*doctor.Report
	var faults []error
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		r, err := p.readReport(filepath.Join(dir, e.Name()))
		if err != nil {
			faults = append(faults, err)
			continue
		}
		reports = append(reports, r)
	}
	switch {
	case len(reports) == 0 && len(faults) > 0:
		return errors.Join(faults...)
	case len(reports) == 0:
		return advice.With(fmt.Errorf("%s: has no report", dir), "cnibox doctor --json > "+filepath.Join(dir, "NODE"))
	}
	merged := doctor.Merge(reports)
	s := p.style(c)
	t := findingTable("SEVERITY", "CHECK", "NODES", "OBJECT", "WHAT", "EVIDENCE", "NEXT", "NAMES")
	var worst doctor.Severity
	var all []finding
	for _, m := range merged {
		worst = cmp.Or(worst, m.Severity)
		all = append(all, finding{m.Finding, fmt.Sprintf("%d of %d nodes (%s)", len(m.Nodes), len(reports), strings.Join(m.Nodes, " "))})
		t.add(string(m.Severity), m.ID, fmt.Sprintf("%d of %d", len(m.Nodes), len(reports)), m.Object, m.What, m.Evidence, m.Next(), strings.Join(m.Nodes, " "))
	}
	switch {
	case c.Bool("json"):
		err = writeJSON(p.Stdout, merged)
	case len(merged) == 0:
		_, err = fmt.Fprintf(p.Stdout, "all checks passed on %d nodes\n", len(reports))
	case s.prose:
		err = p.writeProse(all, s)
	default:
		err = t.write(p.Stdout, s)
	}
	if err = errors.Join(append(faults, err)...); err != nil {
		return err
	}
	return severityError(worst)
}

// fixReport is `cnibox doctor --fix`. It mends a finding of the report only if a new examination has
// it too.
func (p *Process) fixReport(c *cli.Context, h *roles.Host) error {
	old, err := p.readReport(c.String("fix"))
	if err != nil {
		return err
	}
	now, err := p.examine(c.Context, h)
	if err != nil {
		return err
	}
	var mend []doctor.Finding
	left := 0
	for i := range old.Findings {
		f := &old.Findings[i]
		j := slices.IndexFunc(now.Findings, func(g doctor.Finding) bool { return g.Same(f) })
		switch {
		case j < 0:
			p.outcome("gone", f, "")
		case !now.Findings[j].Safe:
			left++
			p.outcome("refused", f, now.Findings[j].Next())
		default:
			mend = append(mend, now.Findings[j])
		}
	}
	if err := p.mend(c.Context, h, mend); err != nil {
		return err
	}
	if now, err = p.examine(c.Context, h); err != nil {
		return err
	}
	for i := range mend {
		if slices.ContainsFunc(now.Findings, func(g doctor.Finding) bool { return g.Same(&mend[i]) }) {
			left++
			p.outcome("left", &mend[i], mend[i].Next())
		} else {
			p.outcome("mended", &mend[i], "")
		}
	}
	if left > 0 {
		return errDifferent
	}
	return nil
}

// outcome prints what became of a finding.
func (p *Process) outcome(what string, f *doctor.Finding, fix string) {
	line := what + "\t" + printable(f.ID) + "\t" + printable(f.Object)
	if fix != "" {
		line += "\trun: " + printable(fix)
	}
	fmt.Fprintln(p.Stdout, line)
}

// mend restores our own objects of findings and removes what ended containers left.
func (p *Process) mend(ctx context.Context, h *roles.Host, findings []doctor.Finding) error {
	var keys []store.Key
	networks := map[string]bool{}
	rules := false
	for _, f := range findings {
		rules = rules || f.ID == doctor.RulesFlushed
		if f.ID == doctor.LeaseLeaked {
			for _, k := range f.Attachments {
				networks[k.Network] = true
			}
		} else {
			keys = append(keys, f.Attachments...)
		}
	}
	var errs []error
	for network := range networks {
		_, err := attachment.Reap(ctx, h, network)
		errs = append(errs, err)
	}
	if !rules && len(keys) == 0 {
		return errors.Join(errs...)
	}
	a, err := p.newAuditor(ctx, h, "", nil)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	all, err := a.all(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	all = slices.DeleteFunc(all, func(one *audited) bool { return !slices.Contains(keys, one.Key) })
	return errors.Join(append(errs, a.repair(ctx, all, rules))...)
}
