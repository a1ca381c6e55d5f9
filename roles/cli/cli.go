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
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/bench"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/roles/cli/trace"
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

	// changes collects the changes of install and uninstall for JSON.
	changes *[]change
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, p Process) int {
	app := p.app()
	args, err := arrange(app.Commands, p.Args)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, args...))
	}
	return p.report(err)
}

// app returns the complete command line. It is built once per call.
func (p *Process) app() *cli.App {
	a := &cli.App{
		Name:                      appName,
		Usage:                     "every CNI plugin in one binary",
		HideHelp:                  true,
		HideVersion:               true,
		DisableSliceFlagSeparator: true,
		Reader:                    p.Stdin,
		Writer:                    p.Stdout,
		ErrWriter:                 p.Stderr,
		Compiled:                  time.Unix(0, 0), // otherwise the library reads the binary's modification time
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              flagError,
		Action:                    p.noVerb,
		Commands: []*cli.Command{
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
	a.Commands = p.roleCommands(a.Commands)
	a.Commands = append(a.Commands, p.helpCommand(a))
	finish(a.Commands, a.Name)
	return a
}

// finish sets the common properties of all commands.
func finish(cmds []*cli.Command, parent string) {
	for _, c := range cmds {
		path := parent + " " + c.Name
		if parent != appName {
			c.HelpName = path // the library sets it for verbs only
		}
		c.HideHelp = true
		c.OnUsageError = flagError
		if (len(c.Flags) > 0 || len(c.Subcommands) == 0) && !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == jsonFlag }) {
			c.Flags = append(c.Flags, &cli.BoolFlag{Name: jsonFlag, Usage: "print JSON, also errors"})
		}
		if c.Action != nil {
			c.Action = named(strings.TrimPrefix(path, appName+" "), c.Action)
		}
		finish(c.Subcommands, path)
	}
}

// verbOf returns a command's name with its parents' names: "state export".
func verbOf(c *cli.Command) string {
	if c.HelpName == "" {
		return c.Name
	}
	return strings.TrimPrefix(c.HelpName, appName+" ")
}

// noVerb returns the error for a call without a known verb.
func (p *Process) noVerb(c *cli.Context) error {
	if word := c.Args().First(); word != "" {
		return p.unknownVerb(word, c.App.Commands)
	}
	writeOverview(p.Stderr, c.App)
	return usagef("", "no verb given")
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
	h, done, err := p.OpenHost(ctx, role)
	if err != nil {
		return nil, nil, asRoot(err)
	}
	return h, done, nil
}
