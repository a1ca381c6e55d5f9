package nights

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// TestTunnel plays nights of two nodes with agents: what keeps the tunnel's packets from the other node. Each node's doctor, `agent
// status` and metrics name the pair, and the printed commands mend it.
func TestTunnel(t *testing.T) {
	a, b := boot(t), boot(t)
	out, err := exec.Command("nsenter", "--target", a.pid, "--net", "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", b.pid).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "cluster")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, n := range []*node{a, b} {
		n.must(fmt.Sprintf(`ip addr add 172.17.8.%d/24 dev eth1
ip link set eth1 up
cnibox agent -cluster-dir %s -node-name node%[1]d -iface eth1 -healthz-ip 127.0.0.1 -healthz-port 8081 >/run/agent.log 2>&1 &`, i+1, dir))
	}
	healthy := func(after string) {
		t.Helper()
		for _, n := range []*node{a, b} {
			last := ""
			await.Until(t, func() bool {
				status, code := n.sh("cnibox agent status")
				found, wrong := n.sh("cnibox doctor && cnibox diff")
				last = status + found
				return code == 0 && wrong == 0 && strings.Contains(status, "1 of 1 peers programmed") && !strings.Contains(status, "warning")
			}, func() string { log, _ := n.sh("cat /run/agent.log"); return after + ": " + last + log })
		}
	}
	healthy("start")

	const runThere = "run 'cnibox doctor' on node2; without a fault there, open the tunnel's UDP port between the nodes"
	mac := a.output(`ip neigh show dev flannel.1 | sed -n 's,^10.244.* lladdr \([0-9a-f:]*\) PERMANENT.*,\1,p'`)
	for _, night := range []struct {
		name, onA, onB string
		// wantA and wantB are checks, with the fix that must be printed. A fix of B is run.
		wantA, fixA, wantB string
	}{
		{
			name: "the other node drops what arrives", onB: `nft 'table ip x { chain i { type filter hook input priority -200; iifname "eth1" udp dport 8472 drop; }; }'`,
			wantA: "tunnel-peer", fixA: runThere, wantB: "tunnel-dropped",
		},
		{name: "the other node's interface is down", onB: "ip link set eth1 down", wantB: "underlay-down"},
		{
			name: "an entry for the other node is old", onA: "ip neigh replace 172.17.8.2 lladdr 02:00:00:00:00:99 nud permanent dev eth1",
			wantA: "tunnel-peer", fixA: "ip neigh change 172.17.8.2 dev eth1 nud stale",
		},
		{name: "a forwarding entry leads elsewhere", onA: "bridge fdb replace " + mac + " dev flannel.1 dst 172.17.8.99 self permanent"}, // the agent mends it
	} {
		a.must(night.onA)
		b.must(night.onB)
		if night.wantA != "" {
			f := a.finds(night.wantA)
			if f.Fix != night.fixA {
				t.Errorf("%s: %+v", night.name, f)
			}
			status := a.output("cnibox agent status || true")
			metrics := a.output(`printf 'GET /metrics HTTP/1.0\r\n\r\n' | nc 127.0.0.1 8081`)
			if !strings.Contains(status, "warning: node2 does not answer node1 through the tunnel since ") || !strings.Contains(metrics, `cnibox_peer_unheard{peer="node2"} 1`) {
				t.Errorf("%s: %s%s", night.name, status, metrics)
			}
			if f.Fix != runThere {
				a.must(f.Fix)
			}
		}
		if night.wantB != "" {
			b.must(b.finds(night.wantB).Fix)
		}
		healthy(night.name)
	}
}

// finding is one of doctor's.
type finding struct{ ID, Object, Evidence, Fix string }

// finds waits until doctor has a finding.
func (n *node) finds(id string) (f finding) {
	n.t.Helper()
	last := ""
	await.Until(n.t, func() bool {
		last, _ = n.sh("cnibox doctor --json 2>/dev/null")
		var report struct{ Findings []finding }
		if err := json.Unmarshal([]byte(last), &report); err != nil {
			n.t.Fatal(err, last)
		}
		for _, f = range report.Findings {
			if f.ID == id {
				return true
			}
		}
		return false
	}, func() string { return "no " + id + " in " + last })
	return f
}

// output returns what a script prints.
func (n *node) output(script string) string {
	n.t.Helper()
	out, code := n.sh(script)
	if code != 0 {
		n.t.Fatalf("%s\nexit code %d\n%s", script, code, out)
	}
	return strings.TrimSpace(out)
}
