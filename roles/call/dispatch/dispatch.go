// Package dispatch connects a process to a role. It makes a Request of the
// environment and standard input, calls the role, and writes the Result or the error
// as one JSON document to standard output (CNI spec 1.1.0, sections 2 to 5).
//
// Only this package executes other programs: plugins that a role delegates to,
// iptables, and this program itself.
package dispatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// Exit codes of a plugin, and of a daemon.
const (
	exitOK     = 0
	exitFailed = 1
	// exitUsage is the code of a daemon whose flags are wrong: a restart does not help.
	exitUsage = 2
)

// Process holds the inputs and outputs of one call. Dispatch uses nothing else of
// the process.
type Process struct {
	Table roles.Table
	// Args is the whole command line. The first element is the program's name.
	Args []string
	// Env is the environment as "K=V". The first of several values of one name counts.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Version is the version of this binary.
	Version string
	// Executable is a path to the running binary's file, usually "/proc/self/exe".
	Executable string
	// OpenHost opens the node for a role. The returned function closes it. Dispatch
	// sets the Host's Delegate.
	OpenHost func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error)
}

// IsCall reports whether the process is to play a role. It is in three cases:
//
//   - the program's name is a role's name;
//   - the first argument is a role's name, and the second is not for the command line,
//     as `status` in `cnibox agent status`;
//   - there is no argument and CNI_COMMAND is set; the configuration's type then names
//     the role.
//
// Otherwise a user runs the command line.
func (p *Process) IsCall() bool {
	role, name, args := p.selected()
	if role != nil && len(args) > 0 && name != filepath.Base(p.Args[0]) && isVerb(role, name, args[0]) {
		return false
	}
	return role != nil || (len(args) == 0 && getenv(p.Env, envCommand) != "")
}

// isVerb reports whether an argument after a role's name is for the command line: a verb of a role
// that has verbs, also a misspelt one, or a plugin's --help. Daemons answer --help themselves.
func isVerb(role *roles.Role, name, arg string) bool {
	if strings.HasPrefix(arg, "-") {
		return role.New != nil && (arg == "-h" || arg == "-help" || arg == "--help")
	}
	return slices.ContainsFunc(role.Commands(), func(v roles.CommandVerb) bool { return strings.HasPrefix(v.Name, name+" ") })
}

// isDaemon reports whether a role is started as a daemon and not for a CNI call.
func isDaemon(role *roles.Role, args []string) bool {
	return role.Run != nil && (role.New == nil || (len(args) > 0 && args[0] == "daemon"))
}

// Main plays the role that the process was called as and returns the exit code.
//
// SIGTERM and SIGINT end a call at once, as SIGKILL does. This is safe because the
// call records its plan first: the runtime's DEL, the next ADD or GC removes what
// the call made. While a call executes another program, which may take minutes, these
// signals cancel the program instead, and the call undoes its changes. Calls
// do not watch signals all the time because that costs two threads and a tenth of
// a call's duration.
func Main(ctx context.Context, p Process) int {
	role, name, args := p.selected()
	verb := roles.Verb(getenv(p.Env, envCommand))
	switch {
	case role != nil && isDaemon(role, args):
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

// WithSignals returns a context that the first SIGTERM or SIGINT cancels. A second
// signal ends the process.
func WithSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// selected finds the role by the program's name or by the first argument. It returns
// the role, the name that selected it, and the arguments after that name. The role is
// nil if neither is a role's name.
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

// about prints the line from which tools parse the plugin's version, and then the
// version of this program.
func (p *Process) about(role *roles.Role, name string) {
	reference := role.Reference
	if reference == "" {
		reference = p.Version
	}
	fmt.Fprintf(p.Stderr, "CNI %s plugin %s\ncnibox %s\n", name, reference, p.Version)
}

// daemon runs a role until it is stopped.
func (p *Process) daemon(ctx context.Context, role *roles.Role, name string, args []string) int {
	log := newLogger(*p, p.daemonLevel())
	err := p.runDaemon(ctx, role, name, args, log)
	if err == nil || (ctx.Err() != nil && isCancelled(err)) {
		return exitOK
	}
	if errors.Is(err, flag.ErrHelp) { // the answer of a daemon to -help
		fmt.Fprintln(p.Stdout, err)
		return exitOK
	}
	fmt.Fprintf(p.Stderr, "cnibox: %s: %s\n", role.Name(), oneLine(err))
	if errors.Is(err, roles.ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

// daemonLevel is the level without CNIBOX_LOG. A daemon on a terminal also logs what it does.
func (p *Process) daemonLevel() slog.Level {
	if f, ok := p.Stderr.(*os.File); ok && IsTerminal(f) {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (p *Process) runDaemon(ctx context.Context, role *roles.Role, name string, args []string, log *slog.Logger) error {
	h, done, err := p.OpenHost(ctx, role.Name(), tagged(log, role.Name()))
	if err != nil {
		return err
	}
	defer done()
	h.Delegate = NewDelegator(*p, h, log)
	h.Role, h.Sockets, h.Env = name, p.sockets(), p.Env
	h.Types, h.Executable = p.Table.Types(), p.Executable
	return catchPanic(log, role.Name(), func() error { return role.Run(ctx, h, args) })
}

// getenv returns the first value of a variable, or "".
func getenv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}
