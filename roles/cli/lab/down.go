package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
)

// stopTimeout is the maximum time for an agent to end.
const stopTimeout = 5 * time.Second

// Down ends a lab, including an incomplete one.
func (l *Lab) Down(ctx context.Context) error {
	s, err := l.Load()
	if err != nil {
		return err
	}
	return l.remove(ctx, s)
}

// remove stops the processes and removes the namespaces, the keys in etcd, and the files. A missing
// object is not an error.
func (l *Lab) remove(ctx context.Context, s *State) error {
	errs := []error{stopAll(l.isHelper)}
	for i := range s.Nodes {
		is, err := l.isAgent(&s.Nodes[i])
		errs = append(errs, err)
		if is != nil {
			errs = append(errs, stopAll(is))
		}
	}
	for _, name := range s.namespaces() {
		errs = append(errs, l.Net.RemoveNamespace(name))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the record stays, so that down can be repeated
	}
	// An unreachable etcd does not prevent the removal of the lab.
	return errors.Join(clearRegistry(ctx, s), os.RemoveAll(l.Dir))
}

// match reports whether a process belongs to the lab.
type match func(pid int) bool

// isAgent returns the match of a node's agent: a process of this program in the node's namespace,
// also one that a killed `lab up` forked and that does not execute the agent yet. Other processes
// there do not belong to the lab. It returns nil if the namespace does not exist.
func (l *Lab) isAgent(n *Node) (match, error) {
	ns, err := l.open(n.Netns)
	if errors.Is(err, netops.ErrNoNetns) {
		return nil, nil // the namespace does not exist, or is only the file for its mount
	}
	if err != nil {
		return nil, err
	}
	dev, inode := ns.ID()
	return func(pid int) bool {
		var st unix.Stat_t
		return unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) == nil && st.Dev == dev && st.Ino == inode && (called(pid, "agent") || called(pid, "lab", "up"))
	}, ns.Close()
}

// isHelper is the match of the lab's forwarder, which runs in no node's namespace, and of the processes that a killed
// `lab up` waited for.
func (l *Lab) isHelper(pid int) bool {
	args := l.forwarderArgs("")
	return called(pid, args[:len(args)-1]...) || called(pid, l.installArgs()...) || called(pid, "add", l.list())
}

// called reports whether a process is this program, by any path, with these first arguments.
func called(pid int, args ...string) bool {
	cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	program, rest, _ := strings.Cut(string(cmd), "\x00")
	return err == nil && filepath.Base(program) == "cnibox" && strings.HasPrefix(rest, strings.Join(args, "\x00")+"\x00")
}

// agents returns the process IDs of a node's agents.
func (l *Lab) agents(n *Node) ([]int, error) {
	is, err := l.isAgent(n)
	if is == nil || err != nil {
		return nil, err
	}
	return processes(is)
}

func processes(is match) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && is(pid) {
			out = append(out, pid)
		}
	}
	return out, nil
}

func stopAll(is match) error {
	running, err := processes(is)
	errs := []error{err}
	for _, pid := range running {
		errs = append(errs, stop(is, pid))
	}
	return errors.Join(errs...)
}

// stop ends a process and waits. It uses a pidfd, so that another process that gets the ID is not
// affected.
func stop(is match, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // it refers to a process, and holds nothing
	if !is(pid) {
		return nil
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		if ended(fd, stopTimeout) {
			return nil
		}
	}
	return fmt.Errorf("stop process %d: it does not end", pid)
}

// ended waits until the process ended: its pidfd becomes readable then.
func ended(fd int, within time.Duration) bool {
	deadline := time.Now().Add(within)
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond))
		if n > 0 {
			return true
		}
		if !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}
