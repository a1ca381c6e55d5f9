package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideArg, as the only argument, makes the program read a job from standard input and write the results to standard output.
const insideArg = "measure-inside-a-sandbox"

// Paths inside the sandbox. /run is a tmpfs there, so both sides keep their state in memory.
const (
	netnsDir = "/run/netns"
	dataDir  = "/run/bench"
)

// errInterrupted ends a run on Ctrl-C; the kernel removes the sandbox with its last process.
var errInterrupted = errors.New("interrupted; nothing was written")

// measureInSandbox runs this program again in a private network and mount namespace and returns the results.
func measureInSandbox(ctx context.Context, j job, stderr io.Writer) (*results, error) {
	in, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	// The parent-death signal follows the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", insideArg)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		return nil, fmt.Errorf("measure in a sandbox: %w", err)
	}
	res := &results{}
	if err := json.Unmarshal(out.Bytes(), res); err != nil {
		return nil, fmt.Errorf("decode results: %w", err)
	}
	return res, nil
}

// runInside is the part in the sandbox: prepare the namespaces, measure, answer.
func runInside(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var j job
	if err := json.NewDecoder(stdin).Decode(&j); err != nil {
		return fmt.Errorf("decode job: %w", err)
	}
	if err := furnishSandbox(); err != nil {
		return err
	}
	res, err := measure(ctx, j)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(stdout).Encode(res); err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	return nil
}

// furnishSandbox prepares the new namespaces for plugins: mounts do not propagate out, /run is empty and in memory, and /sys shows
// this network namespace.
func furnishSandbox() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on /run: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	for _, dir := range []string{netnsDir, dataDir, filepath.Join(dataDir, "tmp")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
	}
	return furnishHost()
}

// furnishHost prepares a new network namespace for the host's side: lo is up, and forwarding is off, since a new namespace inherits it
// from the machine.
func furnishHost() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644); err != nil {
		return fmt.Errorf("turn forwarding off: %w", err)
	}
	return setUp("lo")
}

// setUp sets the IFF_UP flag of a link of the current network namespace.
func setUp(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(link)
	if err != nil {
		return fmt.Errorf("name link %q: %w", link, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("read flags of %q: %w", link, err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set %q up: %w", link, err)
	}
	return nil
}
