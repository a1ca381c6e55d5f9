package nights

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// TestTunnel plays nights of two nodes with agents: what keeps the tunnel's packets from the other node. Each node's doctor, `agent
// status` and metrics name the pair, and the printed commands mend it.
func TestTunnel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster") // removed after the nodes, whose agents write there
	a, b := boot(t), boot(t)
	out, err := exec.Command("nsenter", "--target", a.pid, "--net", "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", b.pid).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, n := range []*node{a, b} {
		n.must(fmt.Sprintf(`ip addr add 172.17.8.%d/24 dev eth1
ip link set eth1 up
cnibox agent -cluster-dir %s -node-name node%[1]d -iface eth1 -healthz-ip 127.0.0.1 -healthz-port 8081 >/run/agent.log 2>&1 &
echo $! >/run/agent.pid`, i+1, dir))
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

	for i, n := range []*node{a, b} {
		n.must(fmt.Sprintf(`echo '{"cniVersion": "1.0.0", "name": "cluster", "plugins": [{"type": "vxlan"}]}' >$WORK/cluster.conflist
pod $WORK/cluster.conflist o%d`, i+1))
	}
	there := b.output("address o2")
	here := a.output("address o1")
	a.must("until get o1 " + there + " 80; do :; done")
	if out, code := a.sh("cnibox path --probe o1 " + there + ":80 && cnibox path --udp --probe o1 " + there + ":99"); code != 0 || !strings.Contains(out, "udp	"+there+":99: refused") {
		t.Errorf("healthy: exit code %d\n%s", code, out)
	}

	const runThere = "run 'cnibox doctor' on node2; without a fault there, open the tunnel's UDP port between the nodes"
	mac := a.output(`ip neigh show dev flannel.1 | sed -n 's,^10.244.* lladdr \([0-9a-f:]*\) PERMANENT.*,\1,p'`)
	for _, night := range []struct {
		name, onA, onB string
		// wantA and wantB are checks, with the fix that must be printed. A fix of B is run.
		wantA, fixA, wantB string
		// pathA is what 'cnibox path --probe' says on A, and pathB what 'cnibox path --in flannel.1' says on B. after ends the night.
		pathA, pathB, after string
	}{
		{
			name: "the other node drops what arrives", onB: `nft 'table ip x { chain i { type filter hook input priority -200; iifname "eth1" udp dport 8472 drop; }; }'`,
			wantA: "tunnel-peer", fixA: runThere, wantB: "tunnel-dropped",
			pathA: `node2 \(172.17.8.2\) answers eth1, and not through the tunnel. It is not known why, one of: the tunnel's UDP port is blocked`,
		},
		{
			name: "the other node's interface is down", onB: "ip link set eth1 down", wantB: "underlay-down",
			pathA: "eth1 of host has no carrier",
		},
		{
			name: "the other node drops everything", onB: `nft 'table netdev x { chain i { type filter hook ingress device eth1 priority 0; drop; }; }'`,
			wantB: "tunnel-dropped", pathA: `node2 \(172.17.8.2\) does not answer on eth1 either, one of: it is down`, after: "nft delete table netdev x 2>/dev/null",
		},
		{
			name: "the other node does not know this one", onB: "kill -STOP $(cat /run/agent.pid)\nnft delete element inet cnibox_overlay vteps4 { 172.17.8.1 }",
			pathA: "one of: .*; that node does not know this one, because its agent is stopped or has an old registry",
			pathB: "this node drops what 172.17.8.1 sends through flannel.1: it is not in the set of known nodes", after: "kill -CONT $(cat /run/agent.pid)",
		},
		{
			name: "a forwarding entry is old and no agent keeps it", onA: "kill -STOP $(cat /run/agent.pid)\nbridge fdb replace " + mac + " dev flannel.1 dst 172.17.8.99 self permanent",
			pathA: "the node 172.17.8.99 does not answer on eth1 either, one of: the forwarding entry leads to a node that has left; it is down", after: "kill -CONT $(cat /run/agent.pid)",
		},
		{
			name: "an entry for the other node is old", onA: "ip neigh replace 172.17.8.2 lladdr 02:00:00:00:00:99 nud permanent dev eth1",
			wantA: "tunnel-peer", fixA: "ip neigh change 172.17.8.2 dev eth1 nud stale",
			pathA: "the permanent entry for 172.17.8.2 on eth1 has the MAC 02:00:00:00:00:99, and [0-9a-f:]+ answers",
		},
		{name: "a forwarding entry leads elsewhere", onA: "bridge fdb replace " + mac + " dev flannel.1 dst 172.17.8.99 self permanent"}, // the agent mends it
	} {
		a.must(night.onA)
		b.must(night.onB)
		for _, side := range []struct {
			n             *node
			want, command string
		}{{a, night.pathA, "cnibox path --probe o1 " + there + ":80"}, {b, night.pathB, "cnibox path --in flannel.1 " + here + " o2"}} {
			out := ""
			await.Until(t, func() bool { // the kernel tells a lost carrier up to a second later
				out, _ = side.n.sh(side.command)
				return side.want == "" || regexp.MustCompile("(?m)^stopped: .*"+side.want).MatchString(out)
			}, func() string { return fmt.Sprintf("%s: no %q in\n%s", night.name, side.want, out) })
		}
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
		for _, n := range []*node{a, b} {
			_, _ = n.sh(night.after) // on one of them it has nothing to do
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
