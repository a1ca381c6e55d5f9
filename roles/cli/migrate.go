package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// migration replaces one program on the node, and returns to it.
type migration struct {
	// name is the verb's second word.
	name, usage string
	// replaces are the plugins of the program that other migrations keep.
	replaces []string
	// only means that no other plugin is replaced, and that cnibox stays on the node after the return.
	only bool
	// flags are the migration's own.
	flags []cli.Flag
	// look inspects the node and returns all steps in their order. The error is the reason why
	// the node cannot be migrated.
	look func(*migrator) ([]step, error)
	// back is look for the return.
	back func(*migrator) ([]step, error)
}

// migrations are in the order in which a node can be migrated from several programs. It returns to
// them in reverse.
func migrations() []migration {
	return []migration{
		{name: "reference", usage: "replace the reference plugins", look: (*migrator).lookReference, back: (*migrator).backReference},
		{name: "flannel", usage: "replace flanneld and flannel's plugin", look: (*migrator).lookFlannel, back: (*migrator).backFlannel},
		{
			name: "azure-vnet", usage: "replace Azure's azure-vnet and azure-vnet-ipam", replaces: []string{azureVNet, azureVNetIPAM},
			look: (*migrator).lookAzure, back: (*migrator).backAzure,
		},
		{
			name: "multus", usage: "replace Multus, with or without its daemon", replaces: []string{"multus"},
			look: (*migrator).lookMultus, back: (*migrator).backMultus,
		},
		{
			name: "whereabouts", usage: "replace whereabouts", replaces: []string{whereabouts}, only: true,
			flags: []cli.Flag{
				&cli.StringFlag{Name: kubeconfigFlag, Usage: "an administrator's kubeconfig, for the pools of the cluster"},
				&cli.StringFlag{Name: "range-namespace", Usage: "the agents' --range-namespace"},
			},
			look: (*migrator).lookWhereabouts, back: (*migrator).backWhereabouts,
		},
	}
}

// The states of a step.
const (
	stepDone = "done"
	stepTodo = "todo"
	// stepManual is a step that the administrator makes, for example to stop a service.
	stepManual = "manual"
)

// step is a part of a migration. It is repeatable: a killed migration begins again with the
// first step that is not done.
type step struct {
	Name  string `json:"step"`
	State string `json:"state"`
	// What names the exact objects.
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
	do   func() error
}

// migrationRecord is kept from the first change until the node has returned.
type migrationRecord struct {
	Started time.Time `json:"started"`
	Dir     string    `json:"dir"`
	ConfDir string    `json:"confDir"`
	// Flanneld are the arguments of the flanneld that ran.
	Flanneld []string `json:"flanneld,omitempty"`
	// Guarded is the ID of the boot in which packets to other nodes' pods are refused without a WireGuard device.
	Guarded string `json:"guarded,omitempty"`
	// Files are the files that were rewritten.
	Files []savedFile `json:"files,omitempty"`
	// Released means that flanneld has the agent's device again.
	Released bool `json:"released,omitempty"`
}

const maxMigrationRecord = 1 << 20

// migrator is one call of the verb.
type migrator struct {
	*Process
	*migration
	c    *cli.Context
	h    *roles.Host
	dir  string
	path string // of the record
	// record has the zero time if the migration has not begun.
	record  migrationRecord
	drained bool
	// refreshed means that the agent has the addresses of whereabouts' containers on this node.
	refreshed bool
	// waiting are the nodes whose agents still have blocks of whereabouts' pools.
	waiting []string
}

func (p *Process) migrateCommand() *cli.Command {
	cmd := nounCommand("migrate", "replace another program on a node with running pods, or return to it")
	for _, m := range migrations() {
		cmd.Subcommands = append(cmd.Subcommands, &cli.Command{
			Name:  m.name,
			Usage: m.usage,
			Description: `Looks at the node, prints the steps, and asks on a terminal. It makes the steps at once
with --yes, and none otherwise. A step that is "manual" is yours: make it and repeat
the command. A killed command is repeated, too. When all steps are done, it compares all
attachments with their specifications, as "cnibox diff". It exits with 3 until then.

--back returns to the replaced program in the same way. See docs/migrate.md.

examples:
  cnibox migrate ` + m.name + `              print the steps, and ask
  cnibox migrate ` + m.name + ` --back --yes`,
			Flags: append([]cli.Flag{
				&cli.BoolFlag{Name: "back", Usage: "return to the replaced program"},
				&cli.BoolFlag{Name: "yes", Usage: "make the steps without a question"},
				&cli.StringFlag{Name: "dir", Value: defaultPluginDir, Usage: "the plugin directory"},
				&cli.StringFlag{Name: "conf-dir", Value: defaultConfDir, Usage: "the directory of networks"},
			}, m.flags...),
			Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
				return p.migrate(&migrator{Process: p, migration: &m, c: c, h: h, path: recordPath(h, m.name)})
			}),
		})
	}
	return cmd
}

func recordPath(h *roles.Host, name string) string {
	return filepath.Join(filepath.Dir(h.Store.KeepPath()), "migrate-"+name+".json")
}

// others returns the other migrations of this node that come before this one, and after it.
func (m *migrator) others() (before, after []string) {
	into := &before
	for _, one := range migrations() {
		if one.name == m.name {
			into = &after
			continue
		}
		if _, err := os.Lstat(recordPath(m.h, one.name)); err == nil {
			*into = append(*into, one.name)
		}
	}
	return before, after
}

// migrationAnswer is the output with --json.
type migrationAnswer struct {
	Steps       []step       `json:"steps"`
	Changes     []change     `json:"changes"`
	Differences []difference `json:"differences"`
}

func (p *Process) migrate(m *migrator) error {
	if !m.c.Bool("json") {
		_, err := m.run()
		return err
	}
	p.changes = &[]change{}
	answer := migrationAnswer{Steps: []step{}, Differences: []difference{}}
	steps, err := m.run()
	if steps != nil {
		answer.Steps = steps
	}
	if err == nil && !m.c.Bool("back") {
		answer.Differences, err = m.verify()
	}
	answer.Changes = *p.changes
	return errors.Join(writeJSON(p.Stdout, answer), err)
}

// run makes the steps until the administrator is needed, and returns all of them. It looks at
// the node again after each step, so it begins where a killed call ended.
func (m *migrator) run() ([]step, error) {
	if err := m.load(); err != nil {
		return nil, err
	}
	look, confirmed := m.look, false
	if m.c.Bool("back") {
		look = m.back
		if _, after := m.others(); len(after) > 0 {
			return nil, advice.With(fmt.Errorf("this node was then migrated from %s: return to that first", after[0]), "cnibox migrate "+after[0]+" --back")
		}
	}
	for last := ""; ; {
		steps, err := look(m)
		switch {
		case err != nil && last == "":
			return nil, fmt.Errorf("%w; nothing was changed", err)
		case err != nil:
			return nil, err
		case last == "":
			m.print(steps...)
		default:
			m.print(steps[slices.IndexFunc(steps, func(s step) bool { return s.Name == last })])
		}
		at := slices.IndexFunc(steps, func(s step) bool { return s.State != stepDone })
		if at < 0 {
			return steps, m.finish()
		}
		s := steps[at]
		switch {
		case s.State == stepManual:
			return steps, advice.With(problem("the next step is yours: "+s.What), "the same command afterwards")
		case s.Name == last:
			return steps, fmt.Errorf("step %s: it was made, but is still to do: %s", s.Name, s.What)
		case !confirmed:
			if confirmed = m.confirm(m.c); !confirmed {
				return steps, advice.With(problem("nothing was changed"), "the same command with --yes")
			}
			m.record.Released = m.record.Released && m.c.Bool("back")
			if err := m.save(); err != nil {
				return steps, err
			}
		}
		if err := s.do(); err != nil {
			return steps, err
		}
		last = s.Name
	}
}

// print prints the steps, and why those that are not done are needed.
func (m *migrator) print(steps ...step) {
	if m.c.Bool("json") {
		return
	}
	s := m.style(m.c)
	colours := map[string]string{stepDone: green, stepTodo: bold, stepManual: yellow}
	for _, one := range steps {
		state := s.paint(colours[one.State], one.State) + strings.Repeat(" ", len(stepManual)-len(one.State))
		fmt.Fprintf(m.Stdout, "%s  %s: %s\n", state, one.Name, printable(one.What))
		if one.Why != "" && one.State != stepDone {
			fmt.Fprintf(m.Stdout, "        %s\n", one.Why)
		}
	}
}

// quietly makes changes without printing them one by one, because the step names them.
func (m *migrator) quietly(do func() error) error {
	if m.changes == nil {
		m.changes = &[]change{}
		defer func() { m.changes = nil }()
	}
	return do()
}

// finish ends a migration whose steps are all done.
func (m *migrator) finish() error {
	if m.c.Bool("back") {
		if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fmt.Fprintf(m.Stderr, "cnibox: migrate: the node has returned to %s\n", m.name)
		return nil
	}
	if m.c.Bool("json") {
		return nil
	}
	return m.diff(m.c, m.h, m.pluginPaths())
}

// verify returns the differences of all attachments.
func (m *migrator) verify() ([]difference, error) {
	all, err := m.auditAll(m.c.Context, m.h, m.pluginPaths())
	if err != nil {
		return nil, err
	}
	found := differences(all)
	if len(found) > 0 {
		err = foundProblem(len(found), len(all))
	}
	return found, err
}

// pluginPaths returns the directories in which check looks for plugins.
func (m *migrator) pluginPaths() string {
	return strings.Join(append([]string{m.dir}, pluginDirs()...), string(filepath.ListSeparator))
}

// load reads the record. The directories are those with which the migration began.
func (m *migrator) load() error {
	raw, err := smallfile.ReadOwn(m.path, maxMigrationRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.c.Bool("back"):
		return fmt.Errorf("%s does not exist: this node was not migrated from %s", m.path, m.name)
	case errors.Is(err, fs.ErrNotExist):
		m.record = migrationRecord{Dir: m.c.String("dir"), ConfDir: m.c.String("conf-dir")}
		var errConf error
		m.record.Dir, err = filepath.Abs(m.record.Dir)
		m.record.ConfDir, errConf = filepath.Abs(m.record.ConfDir)
		err = errors.Join(err, errConf)
	case err == nil:
		err = json.Unmarshal(raw, &m.record)
	}
	if err != nil {
		return advice.With(fmt.Errorf("read record %s: %w", m.path, err), "correct or delete it; --back needs it")
	}
	m.dir = m.record.Dir
	return errors.Join(m.c.Set("dir", m.record.Dir), m.c.Set("conf-dir", m.record.ConfDir))
}

// save writes the record.
func (m *migrator) save() error {
	if m.record.Started.IsZero() {
		m.record.Started = m.h.Now().UTC().Truncate(time.Second)
	}
	raw, err := json.MarshalIndent(&m.record, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return err
	}
	return smallfile.ReplaceSynced(m.path, append(raw, '\n'), 0o600)
}
