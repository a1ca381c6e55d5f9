//go:build kube

package agent_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/command"
)

// TestFlanneldMigrate makes the documented migration of a node from flanneld to the agent, and returns, in a cluster with a node
// that keeps flanneld and one that has the agent. Connections in both directions continue, the other nodes and the record do not
// change, and at the end nothing of cnibox is left.
func TestFlanneldMigrate(t *testing.T) {
	w, server := newFlannelWorld(t)
	ours, theirs, moves := w.nodes[0], w.nodes[1], w.nodes[2]
	flanneld := func(n *node) {
		cmd := n.flanneld(server.URL)
		cmd.Args = append(cmd.Args, "-ip-masq")
		n.runReady(cmd)
	}
	flanneld(theirs)
	ours.start("-ip-masq")
	moves.useReference()
	flanneld(moves)
	if rules := moves.rules(); strings.Count(rules, "FLANNEL-") < 2 {
		t.Fatalf("flanneld has no rules:\n%s", rules)
	}
	programmed := func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} }
	ours.until("flanneld's nodes", programmed)
	pods := []*pod{ours.attach(), theirs.attachFlannel(), moves.attachReference()}
	w.reach(false, pods...)
	tunnels, device := theirs.tunnels(), strings.Fields(moves.ip("-o link show flannel.1"))
	ends := []func() (d any){}
	for _, pair := range [][2]*pod{{pods[1], pods[2]}, {pods[2], pods[0]}} {
		end := w.transfer(pair[0], pair[1])
		ends = append(ends, func() any { return end() })
	}
	later := map[string]func(){
		"systemctl stop flanneld": moves.stop,
		"systemctl start cnibox-agent": func() {
			start := func(flags ...string) {
				agent := moves.agent(flags...)
				agent.Path = filepath.Join(ours.PluginDir(), "agent") // only plugins are installed
				moves.runReady(agent)
				moves.until("the others", programmed)
			}
			start()
			out := moves.command(moves.migrate("migrate", "flannel", "--yes")...)
			if !strings.Contains(out, "start the agent again with --ip-masq, which flanneld has") || !strings.Contains(moves.rules(), "FLANNEL-POSTRTG") {
				t.Errorf("without --ip-masq: %s", out)
			}
			moves.stop()
			start("-ip-masq")
		},
		"cnibox agent status": func() {
			if rules := moves.rules(); strings.Contains(rules, "FLANNEL-") || !strings.Contains(rules, "cnibox_overlay") {
				t.Errorf("the rules are\n%s", rules)
			}
			pods = append(pods, moves.attachInstalled())
			w.reach(false, pods...)
		},
	}
	places := map[string]string{}
	command.Documented(t, "../../../docs/migrate.md", "flannel", func(line string) string {
		if do := later[line]; do != nil {
			do()
		}
		args, is := strings.CutPrefix(line, "cnibox ")
		if !is {
			return ""
		}
		given := strings.Fields(args)
		if given[0] == "migrate" {
			given = moves.migrate(given...)
		}
		return moves.documented(moves.command(given...), server.URL, places)
	})
	moves.stop()
	flanneld(moves)
	back := moves.migrate("migrate", "flannel", "--back", "--yes")
	if out := moves.command(back...); !strings.Contains(out, "done    rules: the agent has no rules and routes") || !strings.Contains(out, "1 interfaces are still attached by cnibox") {
		t.Error(out)
	}
	w.reach(false, pods...)
	pods[3].end() // flannel's plugin does not know the pod
	pods = pods[:3]
	if out := moves.command(back...); !strings.Contains(out, "the node has returned to flannel") {
		t.Error(out)
	}
	if seen := slices.Compact(slices.Sorted(maps.Values(places))); len(seen) != 6 {
		t.Errorf("three nodes have the documented networks and MAC addresses %q", seen)
	}
	for _, end := range ends {
		t.Logf("during the migration and the return the longest silence was %s", end())
	}
	w.reach(false, pods...)
	if now := theirs.tunnels(); now != tunnels {
		t.Errorf("flanneld's other node had\n%s\nand has\n%s", tunnels, now)
	}
	if now := strings.Fields(moves.ip("-o link show flannel.1")); now[0] != device[0] || moves.mac(now) != moves.mac(device) {
		t.Errorf("the device was %s and is %s", device, now)
	}
	if out := moves.ip("route show proto 142") + moves.ip("nexthop show") + moves.ip("-d link show flannel.1"); strings.Contains(out, "142") || strings.Contains(out, "alias") {
		t.Errorf("left: %s", out)
	}
	if now := moves.rules(); strings.Contains(now, "cnibox") {
		t.Errorf("rules are left:\n%s", now)
	}
	if leases, err := filepath.Glob(filepath.Join(moves.Dir(), "networks/cbr0/10.*")); err != nil || len(leases) != 1 || filepath.Base(leases[0]) != pods[2].addr4.String() {
		t.Errorf("leases %q, %v", leases, err)
	}
	if left, err := filepath.Glob(moves.StateDir() + "/migrate-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// mac returns the MAC address in the fields of `ip -o link show`.
func (n *node) mac(fields []string) string {
	for i, f := range fields {
		if f == "link/ether" {
			return fields[i+1]
		}
	}
	return ""
}

// peerLine matches the name, the address and the MAC address of a node in the output of cnibox agent status.
var peerLine = regexp.MustCompile(`(?m)^(10\.244\.\d+)\.0-24[^\t]*\t172\.17\.8\.10(\d)\t(\S+)`)

// documented replaces what differs between runs, and the test's directories by those of a node. Each node keeps a pod network and a MAC
// address of its own, by its number. places has them from one output to the next.
func (n *node) documented(out, etcd string, places map[string]string) string {
	out = strings.NewReplacer(n.PluginDir(), "/opt/cni/bin", n.subnetFile(), "/run/flannel/subnet.env", n.StateDir(), "/var/lib/cnibox", n.RunDir(), "/run/cnibox",
		etcd, "http://10.0.0.10:2379").Replace(out)
	for _, peer := range peerLine.FindAllStringSubmatch(out, -1) {
		places[peer[1]+"."], places[peer[3]] = "10.244."+peer[2]+".", "02:00:00:00:00:0"+peer[2]
	}
	for _, r := range [][2]string{
		{`20[0-9]{2}-[0-9-]{5}T[0-9:]{8}Z`, "2026-01-01T10:00:00Z"},
		{`process [0-9]+`, "process 4711"},
		{`\t[0-9]+m?s(\t|\n)`, "\t1s$1"},
		{`/run/cnibox/[0-9a-f-]{36}`, "/run/cnibox/BOOT"},
		{`veth[0-9a-f]{11}`, "veth0a1b2c3d4e5"},
	} {
		out = regexp.MustCompile(r[0]).ReplaceAllString(out, r[1])
	}
	out = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}|\b10\.244\.[0-9]+\.`).ReplaceAllStringFunc(out, func(found string) string {
		if known := places[found]; known != "" {
			return known
		}
		return found
	})
	lines := strings.SplitAfter(out, "\n")
	peers := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "10.244.") && !strings.Contains(l, "(this node)") })
	if peers > 0 {
		slices.Sort(lines[peers : peers+2]) // their names differ between runs, too
	}
	return strings.Join(lines, "")
}
