package cli

import (
	"bytes"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"
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
		{asRoot(fmt.Errorf("write: %w", unix.EACCES)), ExitFailed, "cnibox: write: permission denied\ntry: run it as root\n", nil},
		{asRoot(fmt.Errorf("write: %w", unix.EROFS)), ExitFailed, "cnibox: write: read-only file system\n", nil},
		{asRoot(nil), ExitOK, "", nil},
		{withHint(unix.EPERM, "sudo"), ExitFailed, "cnibox: operation not permitted\ntry: sudo\n", []string{"state", "--", "--json"}},
		{&verbError{"state", withHint(usagef("", "x"), "y")}, ExitUsage, "{\n  \"verb\": \"state\",\n  \"error\": \"x\",\n  \"fix\": \"y\",\n  \"exitCode\": 2\n}\n", []string{"state", "--json", "x"}},
		{&verbError{"check", errDifferent}, ExitDifferent, "", []string{"check", "--json"}},
	} {
		var b bytes.Buffer
		p := &Process{Stderr: &b, Args: c.args}
		if code := p.report(c.err); code != c.code || b.String() != c.text {
			t.Errorf("%v: %d, %q, want %d, %q", c.err, code, b.String(), c.code, c.text)
		}
	}
}
