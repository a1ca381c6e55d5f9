// Package recording records what doctor and path read of a node and what they print, and plays that back without the node.
package recording

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cli"
	"github.com/cnibox/cnibox/roles/see/view"
)

// version is that of the program that records.
const version = "recorded"

// Recording is what was read of a node, and what was printed.
type Recording struct {
	Commands []Command              `json:"commands"`
	Records  map[string]view.Record `json:"records"`
}

// Command is a command line and the lines that it prints.
type Command struct {
	Line   string   `json:"line"`
	Prints []string `json:"prints"`
}

// IsOf reports whether a command can be recorded: it is one of doctor or path that sends nothing.
func IsOf(line string) bool {
	words := strings.Fields(line)
	isSending := strings.Contains(line, "--probe") || strings.Contains(line, "--dns")
	return len(words) > 1 && (words[1] == "doctor" || words[1] == "path") && !isSending
}

// Of runs commands on the node of this process's namespaces, on which executable is the program. All of them have the same view, so the
// kernel is asked each question once.
func Of(ctx context.Context, executable string, lines []string) (*Recording, error) {
	table, log := all.Table(), slog.New(slog.DiscardHandler)
	h, done, err := node.Open(ctx, node.Options{Program: version, Log: log, IPTables: dispatch.IPTables, Reference: migrate.ReferencePlugins{}})
	if err != nil {
		return nil, err
	}
	defer done()
	h.Delegate = dispatch.NewDelegator(dispatch.Process{Table: table, Env: os.Environ(), Stderr: io.Discard, Version: version, Executable: executable}, h, log)
	known := view.NewHost(ctx, h.Net)
	defer known.Close()
	r := new(Recording)
	for _, line := range lines {
		p := cli.Process{Env: os.Environ(), Executable: executable, View: known}
		p.OpenHost = func(context.Context, string) (*roles.Host, func(), error) { return h, func() {}, nil }
		r.Commands = append(r.Commands, Command{line, run(ctx, p, line)})
	}
	r.Records, err = known.Records()
	return r, err
}

// Play runs the commands with the records alone, and returns what they print. An error names the questions that were not recorded, and the
// records for which no command asks.
func (r *Recording) Play(ctx context.Context) (all []Command, err error) {
	known := view.Recorded(r.Records)
	for _, c := range r.Commands {
		p := cli.Process{View: known, OpenHost: func(context.Context, string) (*roles.Host, func(), error) { return new(roles.Host), func() {}, nil }}
		all = append(all, Command{c.Line, run(ctx, p, c.Line)})
	}
	asked := map[string]bool{}
	var wrong []string
	for _, question := range known.Asked() {
		asked[question] = true
		if _, is := r.Records[question]; !is {
			wrong = append(wrong, "not recorded: "+question)
		}
	}
	for question := range r.Records {
		if !asked[question] {
			wrong = append(wrong, "recorded, and not asked: "+question)
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		err = errors.New(strings.Join(wrong, "\n"))
	}
	return all, err
}

// run returns the lines that a command prints.
func run(ctx context.Context, p cli.Process, line string) []string {
	var out, problem bytes.Buffer
	p.Table, p.Args, p.Version, p.ErrorCode = all.Table(), strings.Fields(line)[1:], version, dispatch.ErrorCode
	p.Stdin, p.Stdout, p.Stderr = strings.NewReader(""), &out, &problem
	_ = cli.Main(ctx, p) // its exit code follows from what it prints
	text := out.String()
	if text == "" {
		text = problem.String()
	}
	text = regexp.MustCompile(`(?m)^all \d+ checks`).ReplaceAllString(text, "all checks") // a new check adds one
	return strings.Split(strings.TrimSpace(text), "\n")
}
