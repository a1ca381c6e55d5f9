package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// TestReport: it is not an error if the reader of the output closes it, as `| head` does.
// A broken connection is an error.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
		args []string
	}{
		{nil, ExitOK, "", nil},
		{&verbError{"cloud show", fmt.Errorf("write: %w", unix.EPIPE)}, ExitOK, "", nil},
		{&verbError{"agent", &net.OpError{Op: "write", Net: "unix", Err: unix.EPIPE}}, ExitFailed, "cnibox: agent: write unix: broken pipe\n", nil},
		{fmt.Errorf("write: %w", unix.EACCES), ExitFailed, "cnibox: write: permission denied\ntry: run it as root\n", nil},
		{fmt.Errorf("write: %w", unix.EROFS), ExitFailed, "cnibox: write: read-only file system\n", nil},
		{advice.With(unix.EPERM, "sudo"), ExitFailed, "cnibox: operation not permitted\ntry: sudo\n", []string{"state", "--", "--json"}},
		{&verbError{"state", advice.With(advice.Usagef("", "x"), "y")}, ExitUsage, "{\n  \"verb\": \"state\",\n  \"error\": \"x\",\n  \"fix\": \"y\",\n  \"exitCode\": 2\n}\n", []string{"state", "--json", "x"}},
		{&verbError{"agent status", roles.Warning("x")}, ExitWarnings, "cnibox: agent status: x\n", nil},
		{&verbError{"check", errDifferent}, ExitDifferent, "", []string{"check", "--json"}},
	} {
		var b bytes.Buffer
		p := &Process{Stderr: &b, Args: c.args}
		if code := p.report(c.err); code != c.code || b.String() != c.text {
			t.Errorf("%v: %d, %q, want %d, %q", c.err, code, b.String(), c.code, c.text)
		}
	}
}

// TestUnprivileged: the verbs that read the node tell another user to be root, and give no other advice.
func TestUnprivileged(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // so that only the mode of the state's directories counts
		t.Fatal(err)
	}
	env := os.Environ()
	for _, name := range []string{"RUN", "STATE"} {
		path := filepath.Join(dir, strings.ToLower(name))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		env = append(env, "CNIBOX_"+name+"_DIR="+path)
	}
	list := filepath.Join(dir, "n.conflist")
	if err := os.WriteFile(list, []byte(`{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"dummy"}]}`), 0o644); err != nil { //nolint:gosec // the user reads it
		t.Fatal(err)
	}
	run := func(verb string) (code int, text string) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args, cmd.Env = append([]string{"product"}, strings.Fields(verb)...), env
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // the caller compares the exit code
		return cmd.ProcessState.ExitCode(), stderr.String()
	}
	for _, verb := range []string{"lint --path " + dir + " " + list, "lint --explain dummy", "fuse " + list, "doctor --cluster " + dir, "list", "version", "completion bash", "help"} {
		if code, text := run(verb); strings.Contains(text, "root") || code == ExitUsage {
			t.Errorf("%s: exit code %d: %s", verb, code, text)
		}
	}
	for _, verb := range []string{
		"state", "state export", "state reap", "state repair", "trace", "trace --failed", "ipam show", "cloud show", "range show", "history", "diff", "repair", "doctor",
		"path host 192.0.2.1", "drops", "capture web", "topo", "ui", "policy off", "lab up", "migrate flannel", "bench " + list,
		"agent status", "nodeipam status", "policy list", "policy explain web 192.0.2.1", "azure-vnet restore",
	} {
		if code, text := run(verb); code != ExitFailed || strings.Count(text, "try: ") != 1 || !strings.Contains(text, "\ntry: run it as root") {
			t.Errorf("%s: exit code %d: %s", verb, code, text)
		}
	}
}
