// Cnibox is every CNI plugin in one binary. Its name selects the program: as "bridge" it is the bridge
// plugin, as "cnibox" the command line.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cli"
)

func main() { os.Exit(run()) }

// run answers a CNI call, runs a daemon, or runs a verb of the command line, and returns the exit code.
func run() int {
	v := version()
	p := dispatch.Process{
		Table: all.Table(), Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr,
		Version: v, Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			return node.Open(ctx, node.Options{
				RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"),
				Role: role, Program: v, Log: log, IPTables: dispatch.IPTables,
				Reference: migrate.ReferencePlugins{},
			})
		},
	}
	if p.IsCall() {
		return dispatch.Main(context.Background(), p)
	}
	return commandLine(p)
}

// version returns the version of this module in the build information: a tag, a pseudo-version, or
// "(devel)" for a build without version control.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	return info.Main.Version
}

// commandLine runs a verb of the command line.
func commandLine(p dispatch.Process) int {
	ctx, stop := dispatch.WithSignals(context.Background())
	defer stop()
	log := dispatch.NewLogger(p)
	return cli.Main(ctx, cli.Process{
		Table: p.Table, Args: os.Args[min(1, len(os.Args)):], Env: p.Env,
		Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, IsTerminal: dispatch.IsTerminal(os.Stdout), ErrIsTerminal: dispatch.IsTerminal(os.Stderr),
		CheckRequest: func(req *roles.Request) error { return dispatch.CheckRequest(req, p.Table) }, ErrorCode: dispatch.ErrorCode,
		Version: p.Version, Executable: p.Executable, Self: dispatch.Self{Executable: p.Executable},
		Plugins: dispatch.NewDelegator(dispatch.Process{Stderr: p.Stderr}, new(roles.Host), log),
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := p.OpenHost(ctx, role, log)
			if err == nil {
				h.Delegate = dispatch.NewDelegator(p, h, log)
			}
			return h, done, err
		},
	})
}
