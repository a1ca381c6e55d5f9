// Cnibox is every CNI plugin in one binary: called as "bridge" it is the
// bridge plugin, called as "cnibox" it is a command line.
package main

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/cpus"
	"github.com/cnibox/cnibox/internal/entry"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cli"
	"github.com/cnibox/cnibox/roles/dispatch"
	_ "github.com/cnibox/cnibox/roles/dispatch/onethread"
)

func main() { os.Exit(run()) }

// run is the whole program but for what entry has answered: a CNI call, a daemon,
// or a person's command line.
func run() int {
	p := entry.Process(all.Table())
	if p.IsCall() {
		return dispatch.Main(context.Background(), p)
	}
	return commandLine(p)
}

// commandLine runs what a person typed.
func commandLine(p dispatch.Process) int {
	cpus.All() // a call's one CPU is not for those who serve many
	ctx, stop := dispatch.WithSignals(context.Background())
	defer stop()
	log := dispatch.NewLogger(p)
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return cli.Main(ctx, cli.Process{
		Table: p.Table, Args: os.Args[min(1, len(os.Args)):], Env: p.Env,
		Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, IsTerminal: err == nil,
		Version: p.Version, Executable: p.Executable, Self: dispatch.Self{Executable: p.Executable},
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			h, done, err := entry.OpenHost(ctx, role, log)
			if err == nil {
				h.Delegate = dispatch.NewDelegator(p, h, log)
			}
			return h, done, err
		},
	})
}
