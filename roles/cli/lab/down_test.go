package lab

import (
	"os/exec"
	"testing"
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
		if got := called(cmd.Process.Pid, "60"); got != c.want {
			t.Errorf("%q: %t", c.args, got)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
