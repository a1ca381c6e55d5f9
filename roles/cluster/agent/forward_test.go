package agent_test

import (
	"strings"
	"testing"
	"time"
)

// TestForwardChain: another program changes iptables' FORWARD chain while the agent runs. Packets pass again long before the agent's
// comparison of everything, which comes once a minute. While the chain refuses them, status says so.
func TestForwardChain(t *testing.T) {
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) {
			w := newWorld(t, 2, dual)
			n := w.nodes[0]
			if program == "iptables-legacy" {
				n.exec(program, "-P", "FORWARD", "ACCEPT") // the table exists, as on a node with such a firewall
			}
			pods := w.startAll()
			w.reach(false, pods...)
			for _, c := range []struct {
				change string
				lossy  bool // the chain or the rules that accept packets are gone for a moment
			}{
				{"-P FORWARD DROP", program == "iptables-nft"}, // there was no chain before
				{"-F FORWARD", true},
				{"-A FORWARD -j DROP", false},
				{"-F FORWARD", true},
				{"-P FORWARD ACCEPT", true},
				{"-P FORWARD DROP", false},
			} {
				end := func() (int, int) { return 0, 0 }
				if !c.lossy {
					end = w.exchange(pods[0], pods[1], false, 5*time.Millisecond)
					w.reach(false, pods...)
				}
				n.exec(program, strings.Fields(c.change)...)
				took := w.reach(false, pods...)
				for range 20 {
					w.reach(false, pods...)
				}
				sent, answered := end()
				t.Logf("%s %s: traffic after %s, %d of %d datagrams lost", program, c.change, took.Round(time.Millisecond), sent-answered, sent)
				if took > 30*time.Second {
					t.Errorf("%s: only the comparison of everything repaired it", c.change)
				}
				if sent != answered {
					t.Errorf("%s: %d datagrams were lost", c.change, sent-answered)
				}
				n.until("rest", func(a answer) bool { return a.Ready })
			}
			// An administrator's rule before those of the agent has precedence, and is named.
			n.exec(program, "-I", "FORWARD", "-j", "DROP")
			n.until("the refusal", func(a answer) bool {
				return !a.Ready && strings.Contains(a.Reason, "rule 1 of chain FORWARD refuses all packets before those of 10.244.0.0/16 are accepted")
			})
			n.exec(program, "-D", "FORWARD", "1")
			n.until("rest", func(a answer) bool { return a.Ready })
			w.reach(false, pods...)
			n.stop()
			t.Log(n.command("agent", "cleanup", "--subnet-file", n.subnetFile()))
			if out := n.exec(program, "-S", "FORWARD"); out != "-P FORWARD DROP\n" {
				t.Errorf("cleanup leaves %s", out)
			}
		})
	}
}
