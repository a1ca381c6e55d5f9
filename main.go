// Cnibox is every CNI plugin in one binary: called as "bridge" it is the
// bridge plugin, called as "cnibox" it is a command line.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cli"
	"github.com/cnibox/cnibox/roles/dispatch"
	_ "github.com/cnibox/cnibox/roles/dispatch/onethread"
	"github.com/cnibox/cnibox/roles/node"
)

// version is set by the linker.
var version = "dev" //nolint:gochecknoglobals // the linker sets variables only

// ownExecutable leads to the running file, even when its path is another's by now.
const ownExecutable = "/proc/self/exe"

func main() { os.Exit(run()) }

// run is the whole program: a CNI call, a daemon, or a person's command line.
func run() int {
	p := dispatch.Process{
		Table: all.Table(), Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr,
		Version: version, Executable: ownExecutable, OpenHost: openHost,
	}
	if p.IsCall() {
		return dispatch.Main(context.Background(), p)
	}
	return commandLine(p)
}

// commandLine runs what a person typed.
func commandLine(p dispatch.Process) int {
	runtime.SetDefaultGOMAXPROCS() // a call's one CPU is not for those who serve many
	ctx, stop := dispatch.WithSignals(context.Background())
	defer stop()
	log := dispatch.NewLogger(p)
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return cli.Main(ctx, cli.Process{
		Table: p.Table, Args: os.Args[min(1, len(os.Args)):], Env: p.Env,
		Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, IsTerminal: err == nil,
		Version: p.Version, Executable: ownExecutable, Self: dispatch.Self{Executable: ownExecutable},
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := openHost(ctx, role, log)
			if err == nil {
				h.Delegate = dispatch.NewDelegator(p, h, log)
			}
			return h, done, err
		},
	})
}

// openHost opens the node where the environment says that its state is.
func openHost(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
	return node.Open(ctx, node.Options{
		RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"),
		Role: role, Program: version, Log: log, IPTables: dispatch.IPTables,
	})
}
