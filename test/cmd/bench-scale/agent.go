package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/overlay"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// agent is an agent process on a registry.
type agent struct {
	binary, dir string
	flags       []string
	peers       int
	cmd         *exec.Cmd
	log         *os.File
}

// registry holds the nodes that change.
type registry interface {
	// change sets the MACs of the first n nodes to those of a generation.
	change(ctx context.Context, generation, n int) error
}

// live has the measurements of a running agent.
type live struct {
	start               seconds
	rss, peak           int // KiB
	one, oneMost, burst seconds
	// oneTail and tail are the parts of oneMost and burst after the registry had accepted the last change.
	oneTail, tail seconds
	idle          float64 // of one CPU
	// left is the time until 1,000 nodes that leave are out of the kernel, leftTail the part of it after the registry's last reply.
	left, leftTail seconds
}

func (a *agent) env() []string {
	return append(os.Environ(), "CNIBOX_RUN_DIR="+filepath.Join(a.dir, "run"), "CNIBOX_STATE_DIR="+filepath.Join(a.dir, "state"))
}

// handOff is the part of the hand-off file that is measured.
type handOff struct {
	Ready bool `json:"ready"`
	Peers struct {
		Programmed int `json:"programmed"`
	} `json:"peers"`
}

// start starts the agent on a kernel without its objects, and waits until all peers in its hand-off file are programmed.
func (a *agent) start(ctx context.Context) (seconds, error) {
	file := filepath.Join(a.dir, "overlay.json")
	_ = os.Remove(file)
	args := append([]string{"agent", "-node-name", "self", "-iface", "under0", "-subnet-file", "", "-overlay-file", file}, a.flags...)
	a.cmd = exec.CommandContext(ctx, a.binary, args...)
	a.cmd.Env = a.env()
	var err error
	a.log, err = os.Create(filepath.Join(a.dir, "agent.log"))
	if err != nil {
		return 0, err
	}
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	replaced, err := watchReplaced(a.dir)
	if err != nil {
		return 0, err
	}
	defer replaced.Close()
	start := time.Now()
	if err := a.cmd.Start(); err != nil {
		return 0, err
	}
	_ = replaced.SetReadDeadline(start.Add(patience))
	for events := make([]byte, 64<<10); err == nil; _, err = replaced.Read(events) {
		var h handOff
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &h) == nil && h.Ready && h.Peers.Programmed == a.peers {
			return time.Since(start), nil
		}
	}
	b, _ := os.ReadFile(a.log.Name())
	return 0, errors.Join(fmt.Errorf("the agent is not ready: %w: %s", err, b), a.stop(ctx))
}

// watchReplaced returns a file that becomes readable when a file of a directory is replaced (inotify(7)).
func watchReplaced(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// stop stops the agent and removes its objects.
func (a *agent) stop(ctx context.Context) error {
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	_ = a.cmd.Wait()
	_ = a.log.Close()
	c := exec.CommandContext(ctx, a.binary, "agent", "cleanup")
	c.Env = a.env()
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cleanup: %w: %s", err, out)
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(a.dir, "run")))
}

// startTimes returns the median of several starts.
func (a *agent) startTimes(ctx context.Context, n int) (seconds, error) {
	var all []seconds
	for range n {
		took, err := a.start(ctx)
		if err != nil {
			return 0, err
		}
		if err := a.stop(ctx); err != nil {
			return 0, err
		}
		all = append(all, took)
	}
	return median(all), nil
}

// live measures a running agent: one change, many changes, and no change.
func (a *agent) live(ctx context.Context, r registry) (l live, err error) {
	if _, err := a.start(ctx); err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, a.stop(ctx)) }()
	h, err := hearMACs()
	if err != nil {
		return l, err
	}
	defer h.close()
	generation := 1
	var ones []seconds
	for range 20 {
		took, tail, err := h.until(unix.RTM_NEWNEIGH, generation, 1, func() error { return r.change(ctx, generation, 1) })
		if err != nil {
			return l, err
		}
		ones = append(ones, took)
		l.oneMost, l.oneTail = max(l.oneMost, took), max(l.oneTail, tail)
		generation++
	}
	l.one = median(ones)
	l.burst, l.tail, err = h.until(unix.RTM_NEWNEIGH, generation, 1000, func() error { return r.change(ctx, generation, 1000) })
	if err != nil {
		return l, err
	}
	// The agent saves 10,000 changed nodes after ten seconds.
	const settled, quiet = 12 * time.Second, 5 * time.Second
	<-time.After(settled)
	before := a.ticks()
	<-time.After(quiet)
	const ticksPerSecond = 100 // USER_HZ
	l.idle = float64(a.ticks()-before) / ticksPerSecond / quiet.Seconds()
	l.rss, l.peak = memory(a.cmd.Process.Pid, "VmRSS"), memory(a.cmd.Process.Pid, "VmHWM")
	if e, ok := r.(*etcd); ok {
		l.left, l.leftTail, err = h.until(unix.RTM_DELNEIGH, generation, 1000, func() error { return e.remove(ctx, 1000) })
	}
	return l, err
}

// memory returns a number of /proc/PID/status in KiB.
func memory(pid int, key string) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// ticks returns the processor time of the process.
func (a *agent) ticks() int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return user + system
}

// monitor receives notifications of new forwarding entries.
type monitor struct {
	updates chan netlink.NeighUpdate
	done    chan struct{}
}

func hearMACs() (*monitor, error) {
	e := &monitor{make(chan netlink.NeighUpdate, 1<<16), make(chan struct{})}
	return e, netlink.NeighSubscribeWithOptions(e.updates, e.done, netlink.NeighSubscribeOptions{ReceiveBufferSize: 16 << 20, ReceiveBufferForceSize: true})
}

func (e *monitor) close() { close(e.done) }

// until returns the time from before a change until the kernel has reported the new or deleted forwarding entries of n nodes of a
// generation, and the part of it after the change was made.
func (e *monitor) until(kind uint16, generation, n int, change func() error) (all, tail seconds, err error) {
	want := map[overlay.MAC]bool{}
	for k := range n {
		want[mac(generation, k)] = true
	}
	start := time.Now()
	failed := make(chan error, 1)
	go func() { failed <- change() }()
	late := time.After(patience)
	var taken, done time.Time
	for done.IsZero() || taken.IsZero() {
		select {
		case u := <-e.updates:
			if u.Type == kind && u.Family == unix.AF_BRIDGE {
				var m overlay.MAC
				copy(m[:], u.HardwareAddr)
				delete(want, m)
			}
			if len(want) == 0 && done.IsZero() {
				done = time.Now()
			}
		case err := <-failed:
			if err != nil {
				return 0, 0, err
			}
			taken = time.Now()
		case <-late:
			return 0, 0, fmt.Errorf("%d of %d changes did not reach the kernel", len(want), n)
		}
	}
	return done.Sub(start), max(done.Sub(taken), 0), nil
}
