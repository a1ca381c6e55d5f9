package lab_test

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/cnibox/cnibox/roles/cli/lab"
)

// TestPath follows packets from a pod on one node to a pod on another.
func TestPath(t *testing.T) {
	l := newLab(t, build(t))
	s, err := l.Up(t.Context(), lab.Plan{Nodes: 2, Pods: 1, Registry: "dir"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Down(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	path := func(flags ...string) string {
		args := append([]string{"path", "--lab", l.Dir}, flags...)
		out, _ := l.Run(t.Context(), &s.Nodes[0], append(args, s.Nodes[0].Pods[0].Name, s.Nodes[1].Pods[0].Address.String())...) // exit code 3: it stops
		return string(out)
	}
	match := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !regexp.MustCompile("(?m)^" + want + "$").MatchString(out) {
				t.Errorf("no line %q in\n%s", want, out)
			}
		}
	}
	match(path(), "host\tleaves\tby eth1 to node 172.17.8.102, node2 of the lab", "node2\tarrives\ton flannel.1", "lab-node2-pod1\tarrives\ton eth0")
	match(path("--probe"), "lab-node1-pod1\tping\t10.244.1.[0-9]+ with 1450 bytes and DF: answer",
		"host\ttraced\techo request: .*postrouting to flannel.1", "node2\ttraced\techo request: prerouting from flannel.1.*", "lab-node2-pod1\ttraced\techo request: .*input")
	nft := exec.Command("ip", "netns", "exec", s.Nodes[1].Netns, "nft", "table ip other { chain f { type filter hook forward priority 0; ip daddr 10.244.1.0/24 drop; }; }")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	match(path(), "stopped: node2: a rule of another program drops it: ip other f handle 2: drop")
	match(path("--probe"), "stopped: node2 drops the echo request: ip other f handle [0-9]+: drop")
}
