package rolestest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
)

const (
	// pluginEnv makes the test binary play a plugin.
	pluginEnv = "CNIBOX_ROLESTEST_PLUGIN"
	// probeEnv contains Call.Probe.
	probeEnv = "CNIBOX_ROLESTEST_PROBE"
	// cacheEnv contains Env.CacheDir.
	cacheEnv = "CNIBOX_TEST_CACHE_DIRS"
	// lockTimeoutEnv replaces the lock timeout of 30 s.
	lockTimeoutEnv = "CNIBOX_TEST_LOCK_TIMEOUT"
)

// lockTimeout reads lockTimeoutEnv; 0 means the default.
func lockTimeout() (time.Duration, error) {
	s := os.Getenv(lockTimeoutEnv)
	if s == "" {
		return 0, nil
	}
	return time.ParseDuration(s)
}

// Main is for TestMain. If the test binary is called as a plugin, Main plays a role
// of the table. Otherwise it runs the tests in a separate network namespace.
func Main(m *testing.M, table roles.Table) {
	playPlugin(table)
	netopstest.Main(m)
}

// InitialMain is Main for tests of devices, see netopstest.InitialMain.
func InitialMain(m *testing.M, table roles.Table) {
	playPlugin(table)
	netopstest.InitialMain(m)
}

// playPlugin plays a role and ends the process if the process was called as a plugin.
func playPlugin(table roles.Table) {
	if os.Getenv(pluginEnv) != "" {
		os.Exit(plugin(table))
	}
}

// plugin plays one CNI call with the probe from the environment.
func plugin(table roles.Table) int {
	probe, err := parseProbe(os.Getenv(probeEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	timeout, err := lockTimeout()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	code := dispatch.Main(context.Background(), dispatch.Process{
		Table: table, Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: dispatch.Stdout(int(os.Stdout.Fd())), Stderr: os.Stderr,
		Version: "test", Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			o := node.Options{
				RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"),
				CacheDirs:   []string{os.Getenv(cacheEnv)},
				LockTimeout: timeout,
				Role:        role, Program: "test", Log: log, IPTables: dispatch.IPTables,
				Reference: migrate.ReferencePlugins{},
			}
			probe.into(&o)
			return node.Open(ctx, o)
		},
	})
	if probe.seen < probe.n {
		fmt.Fprintln(os.Stderr, unreached)
	}
	return code
}

// unreached is printed if a call made fewer writes than its probe needs.
const unreached = "rolestest: probe was not reached"

// errProbed is the error that a probe returns.
var errProbed = errors.New("made to fail by a test")

// probe counts writes and acts at the n-th one.
type probe struct {
	on, action string
	n, seen    int
	// The mutex protects the counts, because delegates may write at the same time.
	counts sync.Mutex
}

// parseProbe parses a probe, for example "net:fail:3". An empty probe does nothing.
func parseProbe(s string) (*probe, error) {
	if s == "" {
		return &probe{}, nil
	}
	f := strings.Split(s, ":")
	if len(f) != 3 {
		return nil, fmt.Errorf("probe %q is not on:action:n", s)
	}
	n, err := strconv.Atoi(f[2])
	return &probe{on: f[0], action: f[1], n: n}, err
}

func (p *probe) into(o *node.Options) {
	switch p.on {
	case "net":
		o.NetProbe = p
	case "store":
		o.StoreProbe = p.store
	case "lock", "commit", "update":
		o.StoreProbe = func(op string) error {
			if op != p.on {
				return nil
			}
			return p.hit(p.action)
		}
	}
}

// hit counts an operation and acts at the n-th.
func (p *probe) hit(action string) error {
	if p.action != action {
		return nil
	}
	p.counts.Lock()
	defer p.counts.Unlock()
	p.seen++
	if p.seen != p.n {
		return nil
	}
	if action == "stop" {
		stop()
		return nil
	}
	if strings.HasPrefix(action, "kill") {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // the signal ends the process, and this goroutine must not continue
	}
	return errProbed
}

// stop stops the process until it gets SIGCONT. It sends the signal to its own thread, so
// that this thread stops at once.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// store is a store.Options.Probe. It does not fail after a commit.
func (p *probe) store(op string) error {
	if p.action == "fail" && strings.HasSuffix(op, "committed") {
		return nil
	}
	return p.hit(p.action)
}

// Before implements netops.Probe.
func (p *probe) Before(netops.Step) error {
	if p.action == "kill-after" {
		return nil
	}
	return p.hit(p.action)
}

// After implements netops.Probe.
func (p *probe) After(netops.Step) { _ = p.hit("kill-after") }
