// Package command runs cnibox's command line, and the commands of a page of the documentation, in tests.
package command

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cli"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// commandEnv makes the test binary the command line.
const commandEnv = "CNIBOX_TEST_COMMAND"

// Main is rolestest.Main for tests that call Cmd.
func Main(m *testing.M, table roles.Table) {
	if os.Getenv(commandEnv) != "" {
		os.Exit(run(table))
	}
	rolestest.Main(m, table)
}

func run(table roles.Table) int {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	p := dispatch.Process{Table: table, Args: os.Args, Env: os.Environ(), Stderr: os.Stderr, Executable: exe}
	return cli.Main(context.Background(), cli.Process{
		Table: table, Args: os.Args[1:], Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: "test", Executable: exe, ErrorCode: dispatch.ErrorCode,
		CheckRequest: func(req *roles.Request) error { return dispatch.CheckRequest(req, table) },
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := node.Open(ctx, node.Options{
				RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"), Role: role, Program: "test", IPTables: dispatch.IPTables,
				Reference: migrate.ReferencePlugins{},
			})
			if err == nil {
				h.Delegate = dispatch.NewDelegator(p, h, slog.New(slog.DiscardHandler))
			}
			return h, done, err
		},
	})
}

// Cmd prepares a command line on a node.
func Cmd(e *rolestest.Env, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "CNIBOX_RUN_DIR="+e.RunDir(), "CNIBOX_STATE_DIR="+e.StateDir(), commandEnv+"=1", "PATH="+os.Getenv("PATH"))
	return cmd
}

// Documented runs the commands in the blocks "```console" of a page's section, and compares their outputs. A command has the prompt "#". With
// -update it writes the outputs instead.
func Documented(t *testing.T, page, section string, run func(line string) string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(raw), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, section)
	}
	text, after, more := strings.Cut(rest, "\n## ")
	var got strings.Builder
	console, output := false, false
	for line := range strings.Lines(text) {
		command, is := strings.CutPrefix(line, "# ")
		switch {
		case !console:
			console = line == "```console\n"
		case line == "```\n":
			console, output = false, false
		case is:
			output = true
			got.WriteString(line + run(strings.TrimSpace(command)))
			continue
		case output:
			continue // the documented output
		}
		got.WriteString(line)
	}
	if got.String() == text {
		return
	}
	if flag.Lookup("update").Value.String() != "true" { // rolestest defines the flag
		t.Errorf("%s, %q is\n%s\nwant\n%s", page, section, text, got.String())
		return
	}
	out := before + "\n## " + section + "\n" + got.String()
	if more {
		out += "\n## " + after
	}
	if err := os.WriteFile(page, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
}
