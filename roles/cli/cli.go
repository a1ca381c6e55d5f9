// Package cli is the command line `cnibox VERB`. verbs.txt describes the verbs, most have a file of their own, and roles define more.
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
func Main(ctx context.Context, p Process) int { return p.report(p.run(ctx)) }

// run runs the verb that the arguments name.
func (p *Process) run(ctx context.Context) error {
	root := p.root()
	v, args := root.descend(p.Args)
	switch {
	case wantsHelp(args):
		path := strings.Fields(v.name)
		if v == root { // a verb after --help, a role, or an unknown word
			words := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
			path = words[:min(1, len(words))]
		}
		v, args = root.find("help"), path
	case v != root:
	case len(args) == 1 && slices.Contains([]string{"-v", "-version", "--version"}, args[0]):
		v, args = root.find("version"), nil
	case len(args) == 0:
		writeOverview(p.Stderr, root)
		return usagef("", "no verb given")
	case !strings.HasPrefix(args[0], "-"):
		return p.unknownVerb(args[0], root)
	}
	return p.runVerb(ctx, v, args)
}

// runVerb runs a verb, or the one of its verbs that follows its flags.
func (p *Process) runVerb(ctx context.Context, v *verb, args []string) error {
	c, err := v.invocation(ctx, args)
	if err == nil {
		if next := v.find(c.arg(0)); next != nil {
			return p.runVerb(ctx, next, c.args[1:])
		}
		err = v.call(c)
	}
	if err == nil || v.name == "" {
		return err
	}
	return &verbError{v.name, err}
}

// root returns the complete command line. It is built once per call.
func (p *Process) root() *verb {
	root := parseVerbs(verbPages)
	runs := p.runs()
	root.each(func(v *verb) { v.run = runs[v.name] })
	p.addMigrations(root)
	help := root.find("help")
	root.verbs = slices.DeleteFunc(root.verbs, func(v *verb) bool { return v == help })
	p.addRoleVerbs(root)
	root.add(help)
	help.run = func(c *invocation) error { return p.help(c, root) }
	root.each(func(v *verb) {
		if (len(v.flags) > 0 || len(v.verbs) == 0) && v.option(jsonFlag) == nil {
			v.flags = append(v.flags, option{name: jsonFlag, usage: "print JSON, also errors", isSwitch: true})
		}
	})
	return root
}

// runs has the function of each verb of [verbPages].
func (p *Process) runs() map[string]func(*invocation) error {
	return map[string]func(*invocation) error{
		"install":             p.withChanges(p.installFromFlags),
		"uninstall":           p.withChanges(p.uninstallFromFlags),
		"list":                p.list,
		"lint":                p.lint,
		"fuse":                p.fuse,
		"plan":                p.plan,
		"add":                 p.runtimeVerb(p.add),
		"check":               p.checkAny,
		"del":                 p.runtimeVerb(p.del),
		"gc":                  p.gc,
		"status":              p.status,
		"doctor":              p.doctor,
		"state":               p.onNode(p.state),
		"state export":        p.onNode(p.stateExport),
		"state import":        p.onNode(p.stateImport),
		"state repair":        p.onNode(p.stateRepair),
		"state reap":          p.onNode(p.stateReap),
		"state metrics":       p.onNode(p.stateMetrics),
		"path":                p.onNode(p.path),
		"drops":               p.onNode(p.drops),
		"capture":             p.onNode(p.capture),
		"topo":                p.onNode(p.topo),
		"ui":                  p.onNode(p.ui),
		"diff":                p.onNode(p.diffOrApply),
		"trace":               p.trace,
		"trace export":        p.traceExport,
		"trace replay":        p.replay,
		"trace replay inside": p.replayInside,
		"history":             p.onNode(p.history),
		"repair":              p.onNode(p.repairNode),
		"bench":               p.bench,
		"lab up":              p.onLab(p.labUp),
		"lab status":          p.onLab(p.labStatus),
		"lab down":            p.onLab(p.labDown),
		"lab forward":         p.onLab(p.labForward),
		"version":             p.version,
		"completion":          p.completion,
	}
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
