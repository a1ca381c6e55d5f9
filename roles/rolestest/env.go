// Package rolestest is the test suite of every role. It runs each verb as a real process
// in real namespaces: in every spec version, repeated, out of order, after changes of the
// kernel's objects, and with an error or a kill at every write.
//
// The test binary also is the plugin: Main plays a role if the binary is called through
// a link. So a test can make the plugin fail or die at the n-th write.
package rolestest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/test/await"
)

// Env is a node of a test's own: state directories and a plugin directory
// whose links point to the test binary.
type Env struct {
	t    *testing.T
	root string
	// Extra is appended to every call's environment.
	Extra []string
	// Beyond returns state that the role has outside of the kernel and the store, as a text. It may be nil.
	Beyond func() string
}

// NewEnv makes a node with links for every role of a table.
func NewEnv(t *testing.T, table roles.Table) *Env {
	t.Helper()
	e := &Env{t: t, root: t.TempDir()}
	for _, d := range []string{e.PluginDir(), e.RunDir(), e.StateDir(), e.CacheDir()} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table.Roles() {
		for _, n := range r.Names {
			if err := os.Symlink(self, filepath.Join(e.PluginDir(), n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e
}

// PluginDir returns the node's CNI_PATH.
func (e *Env) PluginDir() string { return filepath.Join(e.root, "bin") }

// RunDir returns the node's /run/cnibox.
func (e *Env) RunDir() string { return filepath.Join(e.root, "run") }

// StateDir returns the node's /var/lib/cnibox.
func (e *Env) StateDir() string { return filepath.Join(e.root, "lib") }

// Dir returns the test's temporary directory.
func (e *Env) Dir() string { return e.root }

// Call is one CNI call.
type Call struct {
	Type, Verb, ID, Netns, IfName, Args, Conf string
	// Probe makes the plugin fail or die at the n-th operation: "net:fail:3",
	// "net:kill-before:3", "net:kill-after:3", "store:fail:2", "store:kill:2".
	// "net:stop:1" stops it before a write, "lock:stop:1" before a lock, "commit:stop:1"
	// within a transaction on the state file, "update:stop:1" before one; see Stopped.
	Probe string
}

// Answer is the exit status and the output of a call.
type Answer struct {
	Stdout, Stderr string
	// Code is the exit status, or -1 if the process was killed.
	Code int
}

// Cmd prepares a call as a process.
func (e *Env) Cmd(c Call) *exec.Cmd {
	cmd := exec.Command(filepath.Join(e.PluginDir(), c.Type))
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns, "CNI_IFNAME="+c.IfName,
		"CNI_ARGS="+c.Args, "CNI_PATH="+e.PluginDir(), probeEnv+"="+c.Probe)
	cmd.Env = append(cmd.Env, e.environ()...)
	cmd.Stdin = strings.NewReader(c.Conf)
	return cmd
}

// environ returns the environment of every call on the node.
func (e *Env) environ() []string {
	return append([]string{
		"CNIBOX_RUN_DIR=" + e.RunDir(), "CNIBOX_STATE_DIR=" + e.StateDir(), pluginEnv + "=1", cacheEnv + "=" + e.CacheDir(),
		lockTimeoutEnv + "=" + await.Patience.String(), // on a busy machine many processes wait for one lock
	}, e.Extra...)
}

// Run makes a call and waits for it.
func (e *Env) Run(c Call) Answer {
	e.t.Helper()
	a, err := run(e.Cmd(c))
	if err != nil {
		e.t.Fatal(err)
	}
	return a
}

func run(cmd *exec.Cmd) (Answer, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Answer{}, err
	}
	return Answer{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}, nil
}

// OK makes a call that must succeed, and returns its answer.
func (e *Env) OK(c Call) Answer { e.t.Helper(); return e.assertOK(c, e.Run(c)) }

// assertOK asserts that a call succeeded.
func (e *Env) assertOK(c Call, a Answer) Answer {
	e.t.Helper()
	if a.Code != 0 {
		e.t.Fatalf("%s %s: exit %d: %s%s", c.Verb, c.Type, a.Code, a.Stdout, a.Stderr)
	}
	return a
}

// Fail makes a call that must fail with one error object of the given code. Code 0
// accepts all codes except 0 and 999.
func (e *Env) Fail(c Call, code int) Answer { e.t.Helper(); return e.assertFails(c, e.Run(c), code) }

// assertFails asserts that a call failed with one error object of the given code.
func (e *Env) assertFails(c Call, a Answer, code int) Answer {
	e.t.Helper()
	if a.Code == 0 {
		e.t.Fatalf("%s %s: succeeded, want an error: %s", c.Verb, c.Type, a.Stdout)
	}
	var o struct {
		CNIVersion string
		Code       int
		Msg        string
	}
	if err := json.Unmarshal([]byte(a.Stdout), &o); err != nil {
		e.t.Fatalf("%s %s: stdout is not a single JSON document: %v: %s%s", c.Verb, c.Type, err, a.Stdout, a.Stderr)
	}
	if o.CNIVersion == "" || o.Msg == "" || o.Code == 0 || o.Code == 999 || (code != 0 && o.Code != code) {
		e.t.Fatalf("%s %s: error object %s, want code %d, a version and a message", c.Verb, c.Type, a.Stdout, code)
	}
	return a
}

// State returns the state of the kernel, the store and Beyond as a text for comparison, without
// the shared objects that have a name in modulo.
func (e *Env) State(modulo []string, netns ...*netopstest.NS) string {
	e.t.Helper()
	var b strings.Builder
	for line := range strings.Lines(netopstest.Snapshot(e.t)) {
		if !mentions(line, modulo) {
			b.WriteString(line)
		}
	}
	for _, ns := range netns {
		fmt.Fprintf(&b, "container:\n%s", ns.Snapshot(e.t))
	}
	b.WriteString(e.storeText())
	if e.Beyond != nil {
		b.WriteString(e.Beyond())
	}
	return b.String()
}

func mentions(line string, words []string) bool {
	for _, w := range words {
		if strings.Contains(line, w) {
			return true
		}
	}
	return false
}
