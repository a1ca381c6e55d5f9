// Package cli is the command line `cnibox VERB`. It has one file for each verb, and it
// also offers the verbs that roles define. Only this package imports urfave/cli.
//
// Rules of this user interface: results go to stdout, everything else to
// stderr with a "cnibox: verb:" prefix; no capital initials, no final periods;
// an error says what to do next, and is JSON with --json. Colours and aligned tables are used only on a
// terminal, or with the flag for them. [Process] defines the exit codes, and the help documents
// them.
package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/bench"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/trace"
	"github.com/cnibox/cnibox/roles/see/view"
)

// Exit codes of the program.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	// ExitDifferent means that the verb worked and found a problem: faults (lint), differences
	// (check), or third-party files that were kept (install).
	ExitDifferent = 3
	// ExitWarnings means that doctor found warnings only.
	ExitWarnings = 4
)

// appName is the prefix of every message.
const appName = "cnibox"

// Process has the inputs and outputs of one call. Except for these, the command line uses only the
// files in its arguments and the plugins that it runs.
type Process struct {
	Table roles.Table
	// Args are the arguments after the program's name.
	Args []string
	// Env is the environment, "K=V".
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// IsTerminal reports whether Stdout is a terminal, ErrIsTerminal whether Stderr is one.
	IsTerminal, ErrIsTerminal bool
	Version                   string
	// Executable is the path of the running binary.
	Executable string
	// OpenHost opens the node for a role, or for the command line itself if role is empty. The
	// returned function closes it.
	OpenHost func(ctx context.Context, role string) (*roles.Host, func(), error)
	// CheckRequest refuses requests that a plugin of this program would refuse.
	CheckRequest func(req *roles.Request) error
	// ErrorCode is the CNI code of a plugin's error, and its details.
	ErrorCode func(err error) (code uint, details string)
	// Self runs this program again, for the lab, for bench and for the replay of a trace, and plugins for the replay.
	Self interface {
		lab.Self
		bench.Self
		trace.Self
	}
	// Plugins executes plugins, also those of this program.
	Plugins roles.Delegator
	// View is what doctor and path know about the node, or nil for what they read of it. It records their reading, or plays it back: then
	// OpenHost need not open a node.
	View *view.Host

	// changes collects the changes of install and uninstall for JSON.
	changes *[]change
	// quiet leaves out the changes that were made.
	quiet bool
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, p Process) int {
	root := p.root()
	args, err := arrange(root.Subcommands, p.Args)
	if err == nil {
		err = run(&cli.Context{Context: ctx}, root, args)
	}
	return p.report(err)
}

// run parses the flags of a command and runs it, or the one of its verbs that its first argument names. cli.App does the same, and
// links text/template for a help that nothing prints: with that the linker can leave out no exported method of the whole program.
func run(parent *cli.Context, cmd *cli.Command, args []string) error {
	set := flag.NewFlagSet(cmd.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range cmd.Flags {
		if err := f.Apply(set); err != nil {
			return err
		}
	}
	c := cli.NewContext(nil, set, parent)
	c.Command = cmd
	err := set.Parse(args)
	if err == nil {
		err = unite(cmd.Flags, set)
	}
	if err != nil {
		return flagError(cmd, err)
	}
	if sub := find(cmd.Subcommands, c.Args().First()); sub != nil {
		return run(c, sub, c.Args().Tail())
	}
	return cmd.Action(c)
}

// unite gives a flag the value that was given to its other name: each name has a value of its own in the set.
func unite(flags []cli.Flag, set *flag.FlagSet) error {
	given := map[string]string{}
	set.Visit(func(f *flag.Flag) { given[f.Name] = f.Value.String() })
	for _, f := range flags {
		for _, other := range f.Names()[1:] {
			value, ok := given[other]
			if !ok {
				continue
			}
			name := f.Names()[0]
			if _, twice := given[name]; twice {
				return fmt.Errorf("--%s and -%s are the same flag: give one of them", name, other)
			}
			if err := set.Set(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// root returns the complete command line. It is built once per call.
func (p *Process) root() *cli.Command {
	root := &cli.Command{
		Name:   appName,
		Usage:  "every CNI plugin in one binary",
		Action: p.noVerb,
		Subcommands: []*cli.Command{
			p.installCommand(),
			p.uninstallCommand(),
			p.migrateCommand(),
			p.listCommand(),
			p.lintCommand(),
			p.fuseCommand(),
			p.planCommand(),
			p.addCommand(),
			p.checkCommand(),
			p.delCommand(),
			p.gcCommand(),
			p.statusCommand(),
			p.doctorCommand(),
			p.stateCommand(),
			p.pathCommand(),
			p.policyCommand(),
			p.dropsCommand(),
			p.captureCommand(),
			p.topoCommand(),
			p.uiCommand(),
			p.diffCommand(),
			p.traceCommand(),
			p.historyCommand(),
			p.repairNodeCommand(),
			p.benchCommand(),
			p.labCommand(),
			p.versionCommand(),
			p.completionCommand(),
		},
	}
	root.Subcommands = p.roleCommands(root.Subcommands)
	root.Subcommands = append(root.Subcommands, p.helpCommand(root))
	finish(root.Subcommands, appName)
	return root
}

// finish sets the common properties of all commands.
func finish(cmds []*cli.Command, parent string) {
	for _, c := range cmds {
		c.HelpName = parent + " " + c.Name
		if (len(c.Flags) > 0 || len(c.Subcommands) == 0) && !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == jsonFlag }) {
			c.Flags = append(c.Flags, &cli.BoolFlag{Name: jsonFlag, Usage: "print JSON, also errors"})
		}
		if c.Action != nil {
			c.Action = named(verbOf(c), c.Action)
		}
		finish(c.Subcommands, c.HelpName)
	}
}

// verbOf returns a command's name with its parents' names: "state export". It is empty for the program itself.
func verbOf(c *cli.Command) string {
	return strings.TrimPrefix(c.HelpName, appName+" ")
}

// noVerb returns the error for a call without a known verb.
func (p *Process) noVerb(c *cli.Context) error {
	if word := c.Args().First(); word != "" {
		return p.unknownVerb(word, c.Command.Subcommands)
	}
	writeOverview(p.Stderr, c.Command)
	return advice.Usagef("", "no verb given")
}

// getenv reads the process's environment.
func (p *Process) getenv(key string) string {
	for _, kv := range slices.Backward(p.Env) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// host opens the node for a role; an empty role is the command line itself.
func (p *Process) host(ctx context.Context, role string) (*roles.Host, func(), error) {
	return p.OpenHost(ctx, role)
}

// view returns what is known about the node, and the function that ends it.
func (p *Process) view(ctx context.Context, h *roles.Host) (known *view.Host, done func()) {
	if p.View != nil {
		return p.View, func() {}
	}
	known = view.NewHost(ctx, h.Net)
	return known, known.Close
}
