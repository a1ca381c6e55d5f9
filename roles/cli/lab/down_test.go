package lab

import (
	"fmt"
	"os"
	"os/exec"
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
