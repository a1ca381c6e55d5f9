// Package entry is where a plugin's call enters, and what of the process the rest
// of the program gets. Importing it answers the call.
//
// Go initializes a package when all that it imports is initialized, whether or not
// it will be used. Entry imports what plugins need and answers a call while it is
// initialized itself, so that what only daemons and the command line need never is:
// net/http, crypto/tls, text/template, urfave/cli. That would take a fifth of a start.
// What is no call of package plugins' roles goes on to main, and so does one that turns
// out to need more: to ask a cloud, which one call in many does.
//
// Command initorder has a linked program initialize entry and what it imports first.
package entry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all/plugins"
	"github.com/cnibox/cnibox/roles/dispatch"
	_ "github.com/cnibox/cnibox/roles/dispatch/onethread" // one CPU from the start
	"github.com/cnibox/cnibox/roles/node"
)

// Version is the program's own, set by the linker.
var Version = "dev" //nolint:gochecknoglobals // the linker sets variables only

// stdin is standard input. A call that began here may have read it.
var stdin io.Reader = os.Stdin //nolint:gochecknoglobals // the process has one

// executable leads to the running file, even when its path is another's by now.
const executable = "/proc/self/exe"

// init plays the role that the process was called as, and ends the process.
func init() { //nolint:gochecknoinits // what the package is for
	p := Process(plugins.Table(nil, nil))
	p.Partial = true
	if !p.IsPlugin() {
		return
	}
	in := &recorder{File: os.Stdin}
	p.Stdin = in
	code := netops.AtInit(func() int { return dispatch.Main(context.Background(), p) })
	if code != dispatch.Unfinished {
		os.Exit(code)
	}
	stdin = io.MultiReader(&in.read, os.Stdin)
}

// recorder is a file that keeps what was read of it.
type recorder struct {
	*os.File
	read bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	r.read.Write(p[:n])
	return n, err
}

// Process is the world of this process, with a table of roles.
func Process(t roles.Table) dispatch.Process {
	return dispatch.Process{
		Table: t, Args: os.Args, Env: os.Environ(),
		Stdin: stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr,
		Version: Version, Executable: executable, OpenHost: OpenHost,
	}
}

// OpenHost opens the node where the environment says that its state is.
func OpenHost(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
	return node.Open(ctx, node.Options{
		RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"),
		Role: role, Program: Version, Log: log, IPTables: dispatch.IPTables,
	})
}
