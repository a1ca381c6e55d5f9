package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
)

// sandboxPath is PATH in a sandbox. The reference plugins execute iptables.
const sandboxPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Self runs further processes of this program. The command line's lab and bench make their
// nodes with it, and the replay of a trace its sandbox.
type Self struct {
	// Executable is the running binary's path.
	Executable string
}

// Start starts a process in a network namespace and in its own session, so that it
// continues after this process ends. Its outputs go to log. Start does not wait for
// the process; it returns its process ID.
func (s Self) Start(ns *netops.Namespace, env, args []string, log *os.File) (int, error) {
	cmd := s.command(exec.Command(s.Executable), env, args)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := ns.Run(cmd.Start); err != nil {
		return 0, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	pid := cmd.Process.Pid
	// Wait prevents a zombie if the process ends before this one.
	go func() { _ = cmd.Wait() }()
	return pid, nil
}

// Output runs a process to its end in a network namespace and returns its standard
// output.
func (s Self) Output(ctx context.Context, ns *netops.Namespace, env, args []string) ([]byte, error) {
	var out, errorText bytes.Buffer
	cmd := s.command(exec.CommandContext(ctx, s.Executable), env, args)
	cmd.Stdout, cmd.Stderr = &out, &errorText
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	cmd.WaitDelay = stopTimeout
	err := ns.Run(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errorText.String()))
	}
	return out.Bytes(), nil
}

// Isolated runs a process to its end in new network, mount and PID namespaces. If this process is killed, that ends too, and with it
// the namespaces and all processes in them.
func (s Self) Isolated(ctx context.Context, env, args []string, in io.Reader, out, log io.Writer) error {
	cmd := s.command(exec.CommandContext(ctx, s.Executable), env, args)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		// The signal comes when the starting thread ends. The runtime ends no thread before the process.
		Pdeathsig: syscall.SIGKILL,
	}
	cmd.WaitDelay = stopTimeout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// Become replaces this process by one in a network namespace, on a host of a name.
func (s Self) Become(ns *netops.Namespace, host string, env, args []string) error {
	return ns.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("make UTS namespace: %w", err)
		}
		if err := unix.Sethostname([]byte(host)); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
		return fmt.Errorf("execute %s: %w", s.Executable, unix.Exec(s.Executable, append([]string{"cnibox"}, args...), env))
	})
}

// command sets the arguments, environment and working directory of cmd. The program's
// name is "cnibox", so that the process does not play a role by its name.
func (s Self) command(cmd *exec.Cmd, env, args []string) *exec.Cmd {
	cmd.Args = append([]string{"cnibox"}, args...)
	cmd.Env = env
	cmd.Dir = string(filepath.Separator)
	return cmd
}

// Plugin executes a plugin as a runtime does, and returns its standard output. The error says how it ended.
func (s Self) Plugin(ctx context.Context, file string, env []string, stdin []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, delegateTimeout)
	defer cancel()
	out := &boundedBuffer{left: maxOutput}
	err := runPlugin(ctx, file, append([]string{"PATH=" + sandboxPath}, env...), stdin, out, nil)
	return out.buf.Bytes(), err
}
