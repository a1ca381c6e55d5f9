// Onerole plays one role, dummy, in the way that cnibox plays all of them. Its size is what a role costs without the others: make count
// prints it.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/iface/dummy"
)

func main() {
	os.Exit(dispatch.Main(context.Background(), dispatch.Process{
		Table: roles.Table{{Names: "dummy", Role: dummy.Role}}, Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr, Version: "one role", Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			return node.Open(ctx, node.Options{Role: role, Program: "one role", Log: log, IPTables: dispatch.IPTables})
		},
	}))
}
