// Command demo makes a cluster of three nodes on this machine, with the addresses
// that every description of flannel shows: agents, pods, the kernel's entries, a
// ping between all pods, one packet on its way. Then it removes everything and
// proves that nothing is left. It runs in network, mount and process namespaces
// of its own, so the machine's network is never touched and a Ctrl-C leaves
// nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// insideEnv marks the process that runs in its own namespaces.
const insideEnv = "CNIBOX_DEMO_INSIDE"

func main() {
	binary := flag.String("cnibox", "bin/cnibox", "the cnibox binary")
	flag.Parse()
	if err := run(*binary); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(binary string) error {
	if os.Getenv(insideEnv) == "" {
		return enter()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	d := &demo{ctx: ctx, cnibox: binary}
	err = d.play()
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return errors.New("interrupted; the namespaces are gone with this process")
	}
	return err
}

// enter starts the demo again in namespaces of its own. They end with it.
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
