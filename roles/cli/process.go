package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/call/plugindir"
)

// process is a running process.
type process struct {
	pid int
	// args are its arguments without its name.
	args []string
}

const maxArguments = 1 << 20

// findProcess returns a process in this thread's network namespace whose name, its first argument,
// is the given one and whose program is not cnibox, or nil.
func findProcess(name string) (*process, error) { return findProgram(name, false) }

// findProgram is findProcess, or with ours for processes of cnibox.
func findProgram(name string, ours bool) (*process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		raw, err := smallfile.Read(filepath.Join(dir, "cmdline"), maxArguments)
		args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		if err != nil || filepath.Base(args[0]) != name {
			continue // a process that ended, or another one
		}
		ns, err := os.Readlink(filepath.Join(dir, "ns/net"))
		if errors.Is(err, fs.ErrNotExist) || err == nil && ns != own {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, isOurs, err := plugindir.Identify(filepath.Join(dir, "exe")); err != nil || isOurs != ours {
			continue // it ended, or it is another program by that name
		}
		return &process{pid, args[1:]}, nil
	}
	return nil, nil
}

// awaitEnd waits until no process is left that findProgram finds, for the given time each.
func awaitEnd(name string, ours bool, timeout time.Duration) error {
	for {
		one, err := findProgram(name, ours)
		if one == nil || err != nil {
			return err
		}
		fd, err := unix.PidfdOpen(one.pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for %s, process %d: %w", name, one.pid, err)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(timeout.Milliseconds()))
		interrupted := errors.Is(err, unix.EINTR)
		if err = errors.Join(err, unix.Close(fd)); !interrupted && (n == 0 || err != nil) {
			return errors.Join(fmt.Errorf("%s, process %d, does not end: stop it", name, one.pid), err)
		}
	}
}
