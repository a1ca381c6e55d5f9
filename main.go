// Cnibox is every CNI plugin in one binary: called as "bridge" it is the
// bridge plugin, called as "cnibox" it is a command line.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cli"
	"github.com/cnibox/cnibox/roles/dispatch"
	"github.com/cnibox/cnibox/roles/node"
)

func main() { os.Exit(run()) }

// run answers a CNI call, runs a daemon, or runs a command line.
func run() int {
	v := version()
	p := dispatch.Process{
		Table: all.Table(), Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr,
		Version: v, Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			return openHost(ctx, role, v, log)
		},
	}
	if p.IsCall() {
		return dispatch.Main(context.Background(), p)
	}
	return commandLine(p)
}

// version is the version of this module that the go command recorded: a tag or a
// pseudo-version, and "(devel)" for a build without version control.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	return info.Main.Version
}

// openHost opens the node's state where the environment says that it is.
func openHost(ctx context.Context, role, version string, log *slog.Logger) (*roles.Host, func(), error) {
	return node.Open(ctx, node.Options{
		RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"),
		Role: role, Program: version, Log: log, IPTables: dispatch.IPTables,
	})
}

// commandLine runs the command that a person typed.
func commandLine(p dispatch.Process) int {
	ctx, stop := dispatch.WithSignals(context.Background())
	defer stop()
	log := dispatch.NewLogger(p)
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return cli.Main(ctx, cli.Process{
		Table: p.Table, Args: os.Args[min(1, len(os.Args)):], Env: p.Env,
		Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, IsTerminal: err == nil,
		CheckRequest: func(req *roles.Request) error { return dispatch.CheckRequest(req, p.Table) }, ErrorCode: dispatch.ErrorCode,
		Version: p.Version, Executable: p.Executable, Self: dispatch.Self{Executable: p.Executable},
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := p.OpenHost(ctx, role, log)
			if err == nil {
				h.Delegate = dispatch.NewDelegator(p, h, log)
			}
			return h, done, err
		},
	})
}
