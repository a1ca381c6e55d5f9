// Package dispatch is the edge between a process and a role: environment and
// standard input become a Request, a Result or an error becomes one JSON
// document on standard output (CNI spec 1.1.0, sections 2 to 5).
//
// Only this package executes other programs: plugins that a role delegates to.
package dispatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cnibox/cnibox/roles"
)

// Exit codes of a plugin, and of a daemon.
const (
	exitOK     = 0
	exitFailed = 1
	// exitUsage is for a daemon whose flags are wrong: it would fail each time.
	exitUsage = 2
)

// Process is the world of one call: nothing else of the process is used.
type Process struct {
	Table roles.Table
	// Args is the whole command line: the program's name comes first.
	Args []string
	// Env is the environment, "K=V"; of a repeated name the first counts.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Version is the binary's own.
	Version string
	// Executable leads to the running binary's file: "/proc/self/exe".
	Executable string
	// OpenHost opens the node for a role; the returned function closes it.
	// Delegate is set by dispatch.
	OpenHost func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error)
}

// IsCall tells whether the process is meant to play a role: it was called by a
// role's name, or its first argument is one (and the second no verb of the
// role's: `cnibox agent status`), or it has no argument and CNI_COMMAND is set,
// when `type` in standard input names the role. All else is a person's command
// line.
func (p *Process) IsCall() bool {
	role, name, args := p.selected()
	if role != nil && len(args) > 0 && name != filepath.Base(p.Args[0]) && role.HasVerb(name+" "+args[0]) {
		return false
	}
	return role != nil || (len(args) == 0 && p.getenv(envCommand) != "")
}

// runs tells whether a role is meant to run, not to answer a call.
func runs(role *roles.Role, args []string) bool {
	return role.Run != nil && (role.New == nil || (len(args) > 0 && args[0] == "daemon"))
}

// Main plays the role that the process was called as and returns the exit
// code. A signal ends a call where it stands, as SIGKILL does: what it planned
// is recorded, and the runtime's DEL, the next ADD or GC takes it away. Only
// while another program is executed, which may take minutes, SIGTERM and SIGINT
// cancel it and the call undoes what it did. To watch signals costs two threads
// and a tenth of a call.
func Main(ctx context.Context, p Process) int {
	role, name, args := p.selected()
	verb := roles.Verb(p.getenv(envCommand))
	switch {
	case role != nil && runs(role, args):
		if role.New != nil {
			args = args[1:]
		}
		ctx, stop := WithSignals(ctx)
		defer stop()
		return p.daemon(ctx, role, name, args)
	case verb == "" && role != nil:
		p.about(role, name)
		return exitOK
	}
	return p.call(ctx, role, name, verb)
}

// WithSignals returns a context that SIGTERM and SIGINT cancel; a second one
// kills as it would have without.
func WithSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// selected finds the role by the program's name or by the first argument, the
// name that it was called by, and the arguments after it.
func (p *Process) selected() (role *roles.Role, name string, args []string) {
	if len(p.Args) == 0 {
		return nil, "", nil
	}
	args = p.Args[1:]
	name = filepath.Base(p.Args[0])
	if role, ok := p.Table.Lookup(name); ok {
		return role, name, args
	}
	if len(args) > 0 {
		if role, ok := p.Table.Lookup(args[0]); ok {
			return role, args[0], args[1:]
		}
	}
	return nil, "", args
}

// about prints what tools parse for the plugin's version, and on the next line
// our own.
func (p *Process) about(role *roles.Role, name string) {
	reference := role.Reference
	if reference == "" {
		reference = p.Version
	}
	fmt.Fprintf(p.Stderr, "CNI %s plugin %s\ncnibox %s\n", name, reference, p.Version)
}

// daemon runs a role until it is stopped.
func (p *Process) daemon(ctx context.Context, role *roles.Role, name string, args []string) int {
	log := NewLogger(*p)
	err := p.runDaemon(ctx, role, name, args, log)
	if err == nil || (ctx.Err() != nil && isCancelled(err)) {
		return exitOK
	}
	if errors.Is(err, flag.ErrHelp) { // what a daemon answers -help with
		fmt.Fprintln(p.Stdout, err)
		return exitOK
	}
	fmt.Fprintf(p.Stderr, "cnibox: %s: %s\n", role.Name(), oneLine(err))
	if errors.Is(err, roles.ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

func (p *Process) runDaemon(ctx context.Context, role *roles.Role, name string, args []string, log *slog.Logger) error {
	h, done, err := p.OpenHost(ctx, role.Name(), tagged(log, role.Name()))
	if err != nil {
		return err
	}
	defer done()
	h.Delegate = NewDelegator(*p, h, log)
	h.Role, h.Sockets, h.Env = name, p.sockets(), p.Env
	return guarded(log, role.Name(), func() error { return role.Run(ctx, h, args) })
}

// getenv reads the process's environment.
func (p *Process) getenv(key string) string {
	return getenv(p.Env, key)
}

// getenv finds a variable, or ""; of a repeated name the first counts.
func getenv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}
