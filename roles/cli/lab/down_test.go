package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// TestCalled: an agent is recognised whatever path it was started by.
func TestCalled(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"cnibox", "60"}, true},
		{[]string{"/usr/local/bin/cnibox", "60"}, true},
		{[]string{"cnibox", "60s"}, false},
		{[]string{"notcnibox", "60"}, false},
	} {
		cmd := exec.CommandContext(t.Context(), "sleep")
		cmd.Args = c.args
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The kernel closes the pipe that Start waits for before the new arguments can be read.
		await.Until(t, func() bool {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
			return err != nil || len(line) > 0
		}, func() string { return "the process has no arguments" })
		if got := called(cmd.Process.Pid, "60"); got != c.want {
			t.Errorf("%q: %t", c.args, got)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestHelpers: down ends what a killed up waited for, and nothing of another lab.
func TestHelpers(t *testing.T) {
	l := &Lab{Dir: t.TempDir()}
	other := &Lab{Dir: l.Dir + "2"}
	for _, args := range [][]string{l.installArgs(), {"add", l.list(), "pod"}, l.forwarderArgs("x")} {
		script := filepath.Join(l.Dir, args[0]) // the first argument, which the shell takes for a script
		if err := os.WriteFile(script, []byte("read line; exit 0"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh")
		cmd.Args, cmd.Dir = append([]string{"cnibox"}, args...), l.Dir
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await.Until(t, func() bool { return called(cmd.Process.Pid, args...) }, func() string { return "the process has no arguments" })
		if other.isHelper(cmd.Process.Pid) {
			t.Errorf("%q belongs to another lab, too", args)
		}
		if err := stopAll(l.isHelper); err != nil {
			t.Fatal(err)
		}
		_ = stdin.Close()
		if err := cmd.Wait(); err == nil {
			t.Errorf("%q was not ended", args)
		}
	}
}
