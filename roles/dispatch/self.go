package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cnibox/cnibox/netops"
)

// Self runs this very program again: the command line makes nodes of it.
type Self struct {
	// Executable is the running binary's path.
	Executable string
}

// Start runs a process that goes on after this one, in a namespace and a session
// of its own, and returns its id. It writes to the log; the caller waits for
// nothing.
func (s Self) Start(ns *netops.Namespace, env, args []string, log *os.File) (int, error) {
	cmd := s.command(exec.Command(s.Executable), env, args)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := ns.Run(cmd.Start); err != nil {
		return 0, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	pid := cmd.Process.Pid
	// If it ends before this process does, nothing of it stays.
	go func() { _ = cmd.Wait() }()
	return pid, nil
}

// Output runs a process to its end, in a namespace, and returns what it printed.
func (s Self) Output(ctx context.Context, ns *netops.Namespace, env, args []string) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd := s.command(exec.CommandContext(ctx, s.Executable), env, args)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	cmd.WaitDelay = stopTimeout
	err := ns.Run(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.Bytes(), nil
}

// command is one of this program's own; its name is what tells it from a plugin.
func (s Self) command(cmd *exec.Cmd, env, args []string) *exec.Cmd {
	cmd.Args = append([]string{"cnibox"}, args...)
	cmd.Env = env
	cmd.Dir = string(filepath.Separator)
	return cmd
}
