// Package stage has what the demos share: private network, mount and process namespaces, running programs in them, and searching for
// leftovers. It does not change the machine's network, and removes everything on Ctrl-C.
package stage

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// insideEnv marks the process that runs in private namespaces.
const insideEnv = "CNIBOX_DEMO_INSIDE"

// Stage is the environment of a demo.
type Stage struct {
	Ctx context.Context
	// Cnibox is the path of the binary.
	Cnibox string
}

// Main is a demo's main function. It calls play in private namespaces, on a host with an empty /run, for at most five minutes,
// since the machine may be busy.
func Main(play func(*Stage) error) {
	binary := flag.String("cnibox", "bin/cnibox", "the cnibox binary")
	flag.Parse()
	if err := run(*binary, play); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(binary string, play func(*Stage) error) error {
	if os.Getenv(insideEnv) == "" {
		return enter()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	if err := privateHost(); err != nil {
		return fmt.Errorf("prepare a host of our own: %w", err)
	}
	err = play(&Stage{Ctx: ctx, Cnibox: binary})
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return errors.New("interrupted; the namespaces are gone with this process")
	}
	return err
}

// enter starts the demo again in private namespaces, which end with it.
func enter() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for network namespaces")
	}
	signal.Ignore(os.Interrupt) // the child decides
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	return err
}

// Output runs a program in a network namespace, "" is the host's, and returns what
// it printed.
func (s *Stage) Output(netns, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(s.Ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := InNetns(netns, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, out.Bytes(), errs.String())
	}
	return out.Bytes(), nil
}

// Print runs a program and prints its output, indented, with tabs as columns.
func (s *Stage) Print(netns, name string, args ...string) error {
	out, err := s.Output(netns, name, args...)
	if err != nil {
		return err
	}
	return columns(out)
}

// PrintFound runs a verb of cnibox that exits with 3, because it finds something, and prints its output and messages.
func (s *Stage) PrintFound(netns, name string, args ...string) error {
	cmd := exec.CommandContext(s.Ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := InNetns(netns, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	const found = 3
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != found {
		return fmt.Errorf("%s %s: %w, want exit code %d: %s", filepath.Base(name), strings.Join(args, " "), err, found, out.Bytes())
	}
	return columns(out.Bytes())
}

// columns prints an output, indented, with tabs as columns.
func columns(out []byte) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for line := range strings.Lines(string(out)) {
		fmt.Fprint(w, "    ", line)
	}
	return w.Flush()
}

// Say prints a heading.
func Say(title string) { fmt.Printf("\n%s\n", title) }

// Until waits for a condition.
func (s *Stage) Until(what string, holds func() (bool, error)) error {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if ok, err := holds(); ok || err != nil {
			tick.Stop()
			return err
		}
		select {
		case <-tick.C:
		case <-s.Ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, s.Ctx.Err())
		}
	}
}

// Left returns everything that a demo could leave in a network namespace; "" is the host's.
func (s *Stage) Left(netns string) (string, error) {
	var all bytes.Buffer
	for _, cmd := range [][]string{
		{"ip", "-br", "link"},
		{"ip", "-br", "address", "show", "scope", "global"},
		{"ip", "route"},
		{"ip", "-6", "route"},
		{"nft", "list", "ruleset"},
	} {
		out, err := s.Output(netns, cmd[0], cmd[1:]...)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s\n%s", strings.Join(cmd, " "), out)
	}
	return all.String(), nil
}

// LeftOnHost returns Left of the host, its named namespaces, and processes of cnibox.
func (s *Stage) LeftOnHost() (string, error) {
	all, err := s.Left("")
	if err != nil {
		return "", err
	}
	out, err := s.Output("", "ip", "netns", "list")
	if err != nil {
		return "", err
	}
	all += "ip netns list\n" + string(out)
	// The process namespace contains the demo and what it left.
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return "", err
	}
	for _, p := range processes {
		if path, err := os.Readlink(p); err == nil && path == s.Cnibox {
			all += fmt.Sprintln("process", p)
		}
	}
	return all, nil
}
