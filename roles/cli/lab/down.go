package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stopTimeout is how long an agent may take to end.
const stopTimeout = 5 * time.Second

// Down ends a lab, also one that was left half made.
func (l *Lab) Down(ctx context.Context) error {
	s, err := l.Load()
	if err != nil {
		return err
	}
	return l.remove(ctx, s)
}

// remove stops the agents, and takes away the namespaces with all that is in
// them, and the files. What is not there is success.
func (l *Lab) remove(ctx context.Context, s *State) error {
	var errs []error
	for i := range s.Nodes {
		running, err := l.agents(&s.Nodes[i])
		errs = append(errs, err)
		for _, pid := range running {
			errs = append(errs, l.stop(&s.Nodes[i], pid))
		}
	}
	for _, name := range s.namespaces() {
		errs = append(errs, l.Net.RemoveNamespace(name))
	}
	errs = append(errs, clearRegistry(ctx, s))
	if err := errors.Join(errs...); err != nil {
		return err // the record stays, so that down can be tried again
	}
	return os.RemoveAll(l.Dir)
}

// agents are the processes of this program in a node's namespace that play the
// agent. Nothing else there is the lab's: a person may look around in it.
func (l *Lab) agents(n *Node) ([]int, error) {
	ns, err := l.open(n.Netns)
	if err != nil {
		if _, err := os.Lstat(filepath.Join("/run/netns", n.Netns)); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	defer ns.Close()
	dev, inode := ns.ID()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && isAgent(pid, dev, inode) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// isAgent tells whether a process is an agent in that namespace.
func isAgent(pid int, dev, inode uint64) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var st unix.Stat_t
	if unix.Stat(filepath.Join(dir, "ns", "net"), &st) != nil || st.Dev != dev || st.Ino != inode {
		return false
	}
	cmd, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	args := bytes.Split(cmd, []byte{0})
	return err == nil && len(args) > 1 && slices.Contains([]string{"cnibox"}, string(args[0])) && string(args[1]) == "agent"
}

// stop ends an agent, and waits until it is gone. It is held by a descriptor, so
// that no other process of the same id is meant.
func (l *Lab) stop(n *Node, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop agent %d: %w", pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // it refers to a process, and holds nothing
	if running, err := l.agents(n); err != nil || !slices.Contains(running, pid) {
		return err
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop agent %d: %w", pid, err)
		}
		if ended(fd, stopTimeout) {
			return nil
		}
	}
	return fmt.Errorf("stop agent %d: it does not end", pid)
}

// ended waits for a process's end: its descriptor can be read then.
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
