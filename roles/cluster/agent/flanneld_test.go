//go:build kube

package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// newFlannelWorld makes three nodes and their etcd with flannel's configuration.
func newFlannelWorld(t *testing.T) (*world, *etcdtest.Server) {
	t.Helper()
	runtime.LockOSThread() // etcd ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	server := etcdtest.Start(t)
	etcdCall(t, server.URL, "/v3/kv/put", map[string]any{"key": b64(flannelPrefix + "/config"), "value": b64(vxlan)})
	w := newWorld(t, 3, vxlan)
	w.useEtcd(server.URL)
	return w, server
}

// flanneld returns the command of flannel's daemon for the node.
func (n *node) flanneld(etcd string) *exec.Cmd {
	cmd := exec.Command(kubetest.Built("flanneld"), "-etcd-endpoints="+etcd, "-iface=eth1", "-subnet-file="+n.subnetFile())
	cmd.Env = os.Environ()
	return cmd
}

// attachFlannel attaches a pod with flannel's plugin, which reads flanneld's file.
func (n *node) attachFlannel() *pod {
	n.w.t.Helper()
	return n.attachBy("flannel", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":%q,"dataDir":%q}`, n.subnetFile(), n.Dir()+"/flannel-data"))
}

// tunnels returns the entries that flanneld made for other nodes.
func (n *node) tunnels() string {
	n.w.t.Helper()
	out := n.ip("route show dev flannel.1") + n.ip("neigh show dev flannel.1 nud permanent") + n.exec("bridge", "fdb", "show", "dev", "flannel.1")
	return strings.Join(slices.Sorted(strings.Lines(out)), "")
}

// TestFlanneld: nodes with flanneld and a node with the agent share an etcd, and all pods reach
// each other. On one of flanneld's nodes the agent replaces flanneld: the record, the device and
// the subnet stay, a TCP connection from another node continues, and that node changes nothing.
// Pods that were attached before can be detached. Then flanneld replaces the agent.
func TestFlanneld(t *testing.T) {
	w, server := newFlannelWorld(t)
	ours, theirs, moves := w.nodes[0], w.nodes[1], w.nodes[2]
	theirs.runReady(theirs.flanneld(server.URL))
	ours.start()
	moves.runReady(moves.flanneld(server.URL))
	ours.until("flanneld's nodes", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	pods := []*pod{ours.attach(), theirs.attachFlannel(), moves.attachFlannel()}
	w.reach(false, pods...)

	author := regexp.MustCompile(`,"Author":\{[^}]*\}`)
	records := func() string {
		t.Helper()
		var b strings.Builder
		for _, kv := range etcdCall(t, server.URL, "/v3/kv/range", map[string]any{"key": b64(flannelPrefix + "/subnets/"), "range_end": b64(flannelPrefix + "/subnets0")}).Kvs {
			fmt.Fprintf(&b, "%s %s\n", kv.Key, author.ReplaceAll(kv.Value, nil)) // flanneld does not know who wrote a record
		}
		return b.String()
	}
	before, tunnels, device := records(), theirs.tunnels(), moves.ip("-o link show flannel.1")
	if strings.Count(before, "\n") != 3 || strings.Count(tunnels, "PERMANENT") != 2 {
		t.Fatalf("records\n%s\ntunnels\n%s", before, tunnels)
	}
	end := w.transfer(pods[1], pods[2])
	moves.stop()
	moves.start()
	moves.kill()
	moves.start()
	moves.until("the others", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	t.Logf("while the agent took flanneld's place, and was killed and started, the longest silence was %s", end())
	if now := records(); now != before {
		t.Errorf("the records were\n%s\nand are\n%s", before, now)
	}
	if now := theirs.tunnels(); now != tunnels {
		t.Errorf("flanneld's other node had\n%s\nand has\n%s", tunnels, now)
	}
	if now := moves.ip("-o link show flannel.1"); strings.Fields(now)[0] != strings.Fields(device)[0] {
		t.Errorf("the device was %s and is %s", device, now)
	}
	if routes := moves.ip("route show dev flannel.1"); strings.Count(routes, "\n") != 2 || strings.Count(routes, "proto 142") != 2 {
		t.Errorf("flanneld's routes are not taken over: %s", routes)
	}
	pods = append(pods, moves.attachFlannel())
	w.reach(false, pods...)
	moves.detach(pods[2])
	pods = append(pods[:2], pods[3])

	// flanneld replaces the agent. It makes another device and publishes that one's MAC address.
	moves.stop()
	_, err := moves.verb("agent cleanup", map[string]string{"subnet-file": moves.subnetFile()})
	must(t, err)
	moves.runReady(moves.flanneld(server.URL))
	w.reach(false, append(pods, moves.attachFlannel())...)
}
