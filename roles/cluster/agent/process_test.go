package agent_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// TestOneAgent: a second agent on a node fails and names the first one's process, also one that would only lease blocks of ranges.
func TestOneAgent(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.start()
	for _, cmd := range []*exec.Cmd{n.agent(), n.agent("-ranges-only"), n.agent("-uninstall")} {
		var out []byte
		var err error
		n.ns.Do(t, func() error {
			out, err = cmd.CombinedOutput()
			return nil
		})
		if err == nil || !strings.Contains(string(out), fmt.Sprintf("a daemon runs already, process %d", n.cmd.Process.Pid)) {
			t.Errorf("%s: %v: %s", cmd.Args, err, out)
		}
	}
	if _, err := n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile()}); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("cleanup beside an agent: %v", err)
	}
}

// TestCleanupGuard: the routes that refuse unencrypted packets stay while pods are attached by flannel's plugin, of which cnibox has no
// record.
func TestCleanupGuard(t *testing.T) {
	w := newWorld(t, 1, dual)
	n := w.nodes[0]
	cleanup := func() string {
		t.Helper()
		out, err := n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile()})
		must(t, err)
		text, _ := out.(string)
		return text
	}
	for family, words := range map[string][2]string{"-4": {"10.244.0.0/16", "10.244.3.1/24"}, "-6": {"fd00:10:244::/48", "fd00:10:244:3::1/64"}} {
		network, gateway := words[0], words[1]
		guards := func() string { return n.ip(family + " route show type unreachable proto 142") }
		n.ip(family + " route add unreachable " + network + " metric 2147483647 proto 142")
		n.ip("link add cni0 type bridge")
		n.ip("link set cni0 up")
		n.ip(family + " addr add " + gateway + " dev cni0")
		n.ip("link add veth0 type veth peer name veth1")
		n.ip("link set veth0 up master cni0")
		n.ip("link set veth1 up")
		w.within(func() bool { return strings.Contains(n.ip("link show cni0"), "LOWER_UP") }, func() string { return "no carrier: " + n.ip("link") })
		if out := cleanup(); !strings.Contains(out, "packets to "+network+` stay: pods are still attached: drain the node: another program's, over link "cni0"`) || guards() == "" {
			t.Errorf("with a pod: %s, %s", out, guards())
		}
		n.ip("link del veth0")
		if out := cleanup(); strings.Contains(out, "stay: pods") || guards() != "" {
			t.Errorf("without a pod: %s, %s", out, guards())
		}
		n.ip("link del cni0")
	}
}

// TestCleanup: stopping the agent keeps connections, and cleanup removes all objects.
func TestCleanup(t *testing.T) {
	w := newWorld(t, 2, dual)
	n := w.nodes[0]
	n.exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1") // these settings stay, because other pods may need them
	before := n.snapshot()
	w.nodes[1].start()
	n.start("-ip-masq")
	n.until("a peer", func(a answer) bool { return a.Peers.Programmed == 1 })
	made := n.picture()
	n.stop()
	if left := n.picture(); left != made {
		t.Errorf("stopping changed\n%s\nto\n%s", made, left)
	}
	if _, err := n.verb("agent status", nil); err == nil || !strings.Contains(err.Error(), "no agent runs") {
		t.Errorf("status without an agent: %v", err)
	}
	out, err := n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile(), "cluster-dir": w.dir, "node-name": n.name})
	must(t, err)
	if out != "removed everything of the agent from this node, and its record from the registry dir "+w.dir {
		t.Error(out)
	}
	if after := n.snapshot(); after != before {
		t.Errorf("left is\n%s\nwhere was\n%s", after, before)
	}
	for _, path := range []string{n.overlayFile(), n.subnetFile(), n.socket(), n.socket() + ".lock", w.path(n.name)} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	// An empty flag names no registry, which the answer says.
	out, err = n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile(), "etcd-endpoints": ""})
	if text, _ := out.(string); err != nil || !strings.Contains(text, "its record in the registry stays, because no flag names the registry") {
		t.Errorf("cleanup of nothing: %q, %v", out, err)
	}
}

// get requests a page of the health checks of an agent with -healthz-port=8081.
func (n *node) get(path string) (int, string) { return n.getOn(8081, path) }

func (n *node) getOn(port int, path string) (int, string) {
	t := n.w.t
	t.Helper()
	var c net.Conn
	n.ns.Do(t, func() (err error) {
		c, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err
	})
	defer c.Close()
	_, err := fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
	must(t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	body, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, strings.TrimSpace(string(body))
}

// TestHealth: the checks report the right states. A missing peer fails one of them, pods that cannot be
// attached another one.
func TestHealth(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.start("-healthz-port=8081", "-healthz-ip=127.0.0.1")
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready: 0 of 0 peers", "/peersz": "0 of 0 peers programmed"} {
		if code, body := n.get(path); code != 200 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	twin := w.record(n.name)
	twin.Name, twin.PublicIP, twin.PodCIDRs = "x", netip.MustParseAddr("172.17.8.201"), []netip.Prefix{netip.MustParsePrefix("10.244.201.0/24")}
	twin.BackendData = []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`)
	w.publish(twin)
	twin.Name, twin.PodCIDRs = "y", []netip.Prefix{netip.MustParsePrefix("10.244.202.0/24")}
	w.publish(twin)
	n.until("one of two nodes with one MAC", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 1} })
	for path, want := range map[string]int{"/readyz": 200, "/peersz": 503} {
		if code, body := n.get(path); code != want || !strings.Contains(body, "1 of 2 peers") {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	n.ip("link del eth1")
	n.until("the loss", func(a answer) bool { return !a.Ready })
	if code, body := n.get("/readyz"); code != 503 || !strings.Contains(body, "eth1") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, _ := n.get("/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
}

// TestStatusTable: the table shows this node and every other node with the kernel's entries.
func TestStatusTable(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.startAll()
	n := w.nodes[0]
	x := w.record("k8s-dev-1")
	x.Name, x.BackendType = "x", "wireguard"
	w.publish(x)
	n.until("two others", func(a answer) bool { return len(a.Nodes) == 2 && a.Peers.Programmed == 1 })
	out, err := n.verb("agent status", nil)
	must(t, err)
	head, rows := out.(interface {
		Table() ([]string, [][]string)
	}).Table()
	if len(rows) != 3 || len(head) != 8 {
		t.Fatalf("%q %q", head, rows)
	}
	peer, own := w.record("k8s-dev-1"), w.record(n.name)
	mac := func(r cluster.Node) string {
		v, err := cluster.ParseVTEP(r.BackendData)
		must(t, err)
		return v.MAC.String()
	}
	subnet := peer.PodCIDRs[0]
	for i, want := range [][]string{
		{"k8s-dev-0 (this node)", "172.17.8.101", mac(own), own.PodCIDRs[0].String(), "-", "-", "ready"},
		{"k8s-dev-1", "172.17.8.102", mac(peer), subnet.String(), "172.17.8.102", subnet.Addr().String(), "programmed"},
		{"x", "-", "-", "-", "-", "-", `left out: its backend is "wireguard", this node's is "vxlan"`},
	} {
		if got := rows[i]; !slices.Equal(got[:7], want) {
			t.Errorf("row %q, want %q", got, want)
		}
	}
}

// TestPorts: masquerade uses random ports by default and keeps the pods' ports on request.
func TestPorts(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	for flag, want := range map[string]bool{"-ip-masq-fully-random-disable=false": true, "-ip-masq-fully-random-disable": false} {
		n.start("-ip-masq", flag)
		n.until("rest", func(a answer) bool { return a.Ready })
		rules := n.exec("nft", "list", "table", "inet", "cnibox_overlay")
		if !strings.Contains(rules, "masquerade") || strings.Contains(rules, "fully-random") != want {
			t.Errorf("%s: %s", flag, rules)
		}
		n.stop()
	}
}

// TestCleanupKeepsDevice: with keep-device the device and its entries stay, as flanneld would use them, without label. Routes and
// nexthops of the agent and its rules are removed, but not the subnet file. The agent can take the device over again.
func TestCleanupKeepsDevice(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll("-ip-masq")
	w.reach(false, pods...)
	n := w.nodes[0]
	mac := n.status().IPv4.MAC
	n.stop()
	before := n.ip("neigh show dev flannel.1 nud permanent") + n.exec("bridge", "fdb", "show", "dev", "flannel.1")
	for range 2 { // a killed call is repeated
		_, err := n.verb("agent cleanup", map[string]string{"keep-device": "true", "subnet-file": n.subnetFile()})
		must(t, err)
	}
	if now := n.ip("neigh show dev flannel.1 nud permanent") + n.exec("bridge", "fdb", "show", "dev", "flannel.1"); now != before || before == "" {
		t.Errorf("the entries were\n%s\nand are\n%s", before, now)
	}
	for _, device := range []string{"flannel.1", "flannel-v6.1"} {
		if link := n.ip("-d link show " + device); strings.Contains(link, "alias") {
			t.Errorf("the device is labelled: %s", link)
		}
	}
	if left := n.ip("route show proto 142") + n.ip("-6 route show proto 142") + n.ip("nexthop show") + n.exec("nft", "list", "tables"); left != "" {
		t.Errorf("left: %s", left)
	}
	if _, err := os.Stat(n.subnetFile()); err != nil {
		t.Error(err)
	}
	n.start("-ip-masq")
	if now := n.status().IPv4.MAC; now != mac {
		t.Errorf("the MAC address was %s and is %s", mac, now)
	}
	w.reach(false, pods...)
}
