package agent_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

const (
	vxlan  = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`
	dual   = `{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}`
	hostGW = `{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"host-gw"}}`
)

// TestArticle makes the cluster of flannel's documentation: three nodes, whose pods reach each other.
// The kernel entries and files equal flannel's.
func TestArticle(t *testing.T) {
	w := newWorld(t, 3, vxlan)
	pods := w.startAll()
	t.Logf("all pods reach all within %s", w.reach(false, pods...))
	n, peer := w.nodes[0], w.record("k8s-dev-1")
	subnet := peer.PodCIDRs[0]
	vtep, err := cluster.ParseVTEP(peer.BackendData)
	must(t, err)
	own := w.record("k8s-dev-0").PodCIDRs[0]
	for out, want := range map[string]string{
		n.ip("-d addr show dev flannel.1"):    "vxlan id 1 local 172.17.8.101 dev eth1 srcport 0 0 dstport 8472 nolearning",
		n.ip("addr show dev flannel.1"):       "mtu 1450",
		n.ip("-4 -o addr show dev flannel.1"): "inet " + own.Addr().String() + "/32",
		n.ip("route show"):                    fmt.Sprintf("via %s dev flannel.1 proto 142 onlink", subnet.Addr()),
		n.ip("neigh show dev flannel.1"):      fmt.Sprintf("%s lladdr %s PERMANENT", subnet.Addr(), vtep.MAC),
		n.exec("bridge", "fdb", "show"):       fmt.Sprintf("%s dev flannel.1 dst 172.17.8.102 self permanent", vtep.MAC),
		n.ip("-o link show dev flannel.1 up"): "flannel.1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	env, err := os.ReadFile(n.subnetFile())
	must(t, err)
	if want := fmt.Sprintf("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=%s/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", own.Addr().Next()); string(env) != want {
		t.Errorf("subnet.env is\n%swant\n%s", env, want)
	}
	// The first agent learned of the other nodes after it was ready.
	n.until("two peers", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	o, err := store.ReadOverlay(n.overlayFile())
	must(t, err)
	if !o.Ready || o.MTU != 1450 || o.IPv4 == nil || o.IPv4.Subnet != own || o.IPv6 != nil || o.Peers.Programmed != 2 {
		t.Errorf("hand-off %+v", o)
	}
}

// TestDualStack: each family has its own tunnel and MTU.
func TestDualStack(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	w.reach(false, pods...)
	w.reach(true, pods...)
	w.nodes[0].until("the other node", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 1, Programmed: 1} })
	o, err := store.ReadOverlay(w.nodes[0].overlayFile())
	must(t, err)
	if o.IPv4 == nil || o.IPv6 == nil || o.IPv4.MTU != 1450 || o.IPv6.MTU != 1430 || o.MTU != 1430 {
		t.Errorf("hand-off %+v %+v %+v", o, o.IPv4, o.IPv6)
	}
	env, err := os.ReadFile(w.nodes[0].subnetFile())
	must(t, err)
	if !strings.Contains(string(env), "FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=") || !strings.Contains(string(env), "FLANNEL_MTU=1430\n") {
		t.Errorf("subnet.env is\n%s", env)
	}
}

// TestHostGW: host-gw makes no tunnels. A change to VXLAN and back leaves no object of the former
// backend (with flannel, rke2 #9338 sent unencrypted packets over the old device).
func TestHostGW(t *testing.T) {
	w := newWorld(t, 2, hostGW)
	pods := w.startAll()
	w.reach(false, pods...)
	w.reach(true, pods...)
	n := w.nodes[0]
	if out := n.ip("-o link show"); strings.Contains(out, "flannel") {
		t.Errorf("a device without need: %s", out)
	}
	w.configure(dual)
	for _, n := range w.nodes {
		n.until("vxlan", func(a answer) bool {
			return a.Ready && a.Peers.Programmed == 1 && a.IPv4.Device == "flannel.1" && a.IPv6.Device == "flannel-v6.1"
		})
	}
	w.reach(false, pods...)
	w.reach(true, pods...)
	if out := n.ip("route show proto 142"); strings.Contains(out, "172.17.8.102") || !strings.Contains(out, "flannel.1") {
		t.Errorf("routes of host-gw beside vxlan's: %s", out)
	}
	w.configure(hostGW)
	for _, n := range w.nodes {
		n.until("host-gw", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 && a.IPv4.Device == "" })
	}
	w.reach(true, pods...)
	if out := n.ip("-o link show"); strings.Contains(out, "flannel") {
		t.Errorf("the device is left: %s", out)
	}
}

// TestDirectRouting: nodes on one link need no tunnel. Nodes with and without directRouting work
// together.
func TestDirectRouting(t *testing.T) {
	w := newWorld(t, 2, `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}`)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	n.until("a direct peer", func(a answer) bool { return len(a.Nodes) == 1 && a.Nodes[0].Direct && a.Nodes[0].Route })
	// The underlay goes down and up: the kernel drops the routes without a notification.
	n.ip("link set eth1 down")
	n.ip("link set eth1 up")
	n.connect()
	t.Logf("direct routes are back %s after the interface", w.reach(false, pods...))
}

// TestConfigurationChanges: a running agent applies changes of VNI, port, MTU and family.
func TestConfigurationChanges(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	mac := n.status().IPv4.MAC
	w.configure(`{"Network":"10.244.0.0/16","Backend":{"VNI":7,"Port":4789,"MTU":1400}}`)
	for _, n := range w.nodes {
		n.until("VNI 7", func(a answer) bool {
			return a.Ready && a.IPv4.Device == "flannel.7" && a.IPv4.MTU == 1350 && a.Peers.Programmed == 1
		})
	}
	w.reach(false, pods...)
	if out := n.ip("-o link show"); strings.Contains(out, "flannel.1:") {
		t.Errorf("the old device is left: %s", out)
	}
	// An invalid configuration is reported, and the last one stays in force.
	w.configure(`{"Network":"10.244.0.0/33"}`)
	n.until("the fault", func(a answer) bool { return a.Ready && strings.Contains(a.Reason+a.RegistryError, "10.244.0.0/33") })
	w.reach(false, pods...)
	w.configure(dual)
	for _, n := range w.nodes {
		n.until("both families", func(a answer) bool { return a.Ready && a.IPv6 != nil && a.Peers.Programmed == 1 })
	}
	if back := n.status().IPv4.MAC; back != mac {
		t.Errorf("flannel.1 had %s, and now %s", mac, back)
	}
	w.configure(vxlan)
	n.until("IPv4 alone", func(a answer) bool { return a.Ready && a.IPv6 == nil && a.Peers.Programmed == 1 })
	if out := n.ip("-o link show"); strings.Contains(out, "flannel-v6") {
		t.Errorf("IPv6's device is left: %s", out)
	}
	w.reach(false, pods...)
	// A wrong network is corrected: the nodes have their former networks again.
	w.configure(`{"Network":"10.99.0.0/16","Backend":{"Type":"vxlan"}}`)
	for _, n := range w.nodes {
		n.until("the wrong network", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 && a.PodCIDRs[0].Addr().As4()[1] == 99 })
	}
	w.configure(vxlan)
	w.reach(false, pods...)
}

// TestUnderlayMTU: the device's MTU and the MTU for new pods follow the interface's MTU.
func TestUnderlayMTU(t *testing.T) {
	w := newWorld(t, 1, dual)
	n := w.nodes[0]
	n.start()
	n.ip("link set eth1 mtu 1400")
	n.until("a smaller MTU", func(a answer) bool { return a.Ready && a.IPv4.MTU == 1350 && a.IPv6.MTU == 1330 })
	if out := n.ip("link show flannel.1"); !strings.Contains(out, "mtu 1350") {
		t.Error(out)
	}
	n.ip("link set eth1 mtu 1340")
	n.until("too small for IPv6", func(a answer) bool { return !a.Ready && strings.Contains(a.Reason, "1280") && a.IPv4.MTU == 1290 })
	n.ip("link set eth1 mtu 1500")
	n.until("the former MTU", func(a answer) bool { return a.Ready && a.IPv4.MTU == 1450 && a.IPv6.MTU == 1430 })
	o, err := store.ReadOverlay(n.overlayFile())
	must(t, err)
	if o.MTU != 1430 || !o.Ready {
		t.Errorf("hand-off %+v", o)
	}
}

// TestAddressChange: the node's address changes while the agent runs (flannel #408, #1052, #760).
// The node is published again, and the other nodes follow.
func TestAddressChange(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	old := n.addr4
	n.addr4 = netip.MustParseAddr("172.17.8.77")
	n.ip("addr del " + old.String() + "/24 dev eth1")
	n.connect()
	w.within(func() bool { return w.record(n.name).PublicIP == n.addr4 }, func() string { return "the new address is not published" })
	t.Logf("pods reach each other %s after the address changed", w.reach(false, pods...))
	if out := n.ip("-d link show flannel.1"); !strings.Contains(out, "local 172.17.8.77") {
		t.Error(out)
	}
}

// TestOwnRecord: the agent restores this node's record after it was changed, made invalid or
// removed.
func TestOwnRecord(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	good := w.record(n.name)
	back := func(what string) {
		t.Helper()
		w.within(func() bool {
			var now cluster.Node
			raw, err := os.ReadFile(w.path(n.name))
			return err == nil && json.Unmarshal(raw, &now) == nil && sameRecord(now, good)
		}, func() string { return what + ": the record does not come back" })
	}
	altered := good
	altered.PublicIP, altered.BackendData = netip.MustParseAddr("192.0.2.77"), []byte(`{"VNI":1,"VtepMAC":"02:02:02:02:02:02"}`)
	w.publish(altered)
	back("altered")
	w.put(n.name, []byte(`{"name":`))
	back("garbage")
	must(t, os.Remove(w.path(n.name)))
	back("removed")
	w.reach(false, pods...)
}

// TestPodCIDRChange: the registry assigns another pod network to this node.
func TestPodCIDRChange(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.startAll()
	n := w.nodes[0]
	rec := w.record(n.name)
	rec.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.200.0/24")}
	w.publish(rec)
	n.until("the new pod network", func(a answer) bool { return a.Ready && a.PodCIDRs[0] == rec.PodCIDRs[0] })
	o, err := store.ReadOverlay(n.overlayFile())
	must(t, err)
	if o.IPv4.Subnet != rec.PodCIDRs[0] {
		t.Errorf("hand-off %+v", o.IPv4)
	}
	if out := n.ip("-4 -o addr show dev flannel.1"); !strings.Contains(out, "10.244.200.0/32") || strings.Count(out, "inet") != 1 {
		t.Errorf("the device has %s", out)
	}
	var out string
	w.within(func() bool {
		out = w.nodes[1].ip("route show proto 142")
		return strings.HasPrefix(out, "10.244.200.0/24") && strings.Count(out, "\n") == 1
	}, func() string { return "the other node has " + out })
}

// TestTwoWithOneSubnet: two nodes claim one subnet. The second by name reports the conflict, and
// the first continues.
func TestTwoWithOneSubnet(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.startAll()
	first, second := w.nodes[0], w.nodes[1]
	rec := w.record(second.name)
	other := w.record(first.name)
	other.Name, other.PublicIP, other.PodCIDRs = "a-third", netip.MustParseAddr("172.17.8.150"), rec.PodCIDRs
	other.BackendData = []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:33"}`)
	w.publish(other)
	a := second.until("the conflict", func(a answer) bool { return !a.Ready })
	if !strings.Contains(a.Reason, `overlaps that of node "a-third"`) {
		t.Errorf("the reason is %q", a.Reason)
	}
	o, err := store.ReadOverlay(second.overlayFile())
	must(t, err)
	if o.Ready || !strings.Contains(o.Reason, "a-third") {
		t.Errorf("hand-off %+v", o)
	}
	first.until("the others left out", func(a answer) bool {
		for _, p := range a.Nodes {
			if p.Peer == second.name && p.State == "left out" && strings.Contains(p.Error, "a-third") {
				return a.Ready
			}
		}
		return false
	})
	must(t, os.Remove(w.path("a-third")))
	second.until("peace", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 })
}

// TestHostileNodes: invalid records are reported with the reason and affect no other node.
func TestHostileNodes(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	good := w.record("k8s-dev-1")
	for name, change := range map[string]func(*cluster.Node){
		"all":     func(n *cluster.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/17")} },
		"backend": func(n *cluster.Node) { n.BackendType = "wireguard" },
		"loop":    func(n *cluster.Node) { n.PublicIP = w.nodes[0].addr4 },
		"nowhere": func(n *cluster.Node) { n.PublicIP = netip.Addr{} },
		"outside": func(n *cluster.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")} },
		"vni":     func(n *cluster.Node) { n.BackendData = []byte(`{"VNI":9,"VtepMAC":"02:00:00:00:00:44"}`) },
		"mac":     func(n *cluster.Node) { n.BackendData = []byte(`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`) },
	} {
		n := good
		n.Name, n.PublicIP, n.PodCIDRs = "x-"+name, netip.MustParseAddr("172.17.8.160"), []netip.Prefix{netip.MustParsePrefix("10.244.222.0/24")}
		n.BackendData = []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:44"}`)
		change(&n)
		w.publish(n)
	}
	w.put("x-garbage", []byte(`{"name":"x-garbage","podCIDRs":["10.244.`))
	a := w.nodes[0].until("every one of them", func(a answer) bool {
		left := 0
		for _, n := range a.Nodes {
			if n.State == "left out" && n.Error != "" {
				left++
			}
		}
		return a.Ready && left == 8 && a.Peers.Programmed == 1
	})
	if len(a.Nodes) != 9 {
		t.Errorf("%+v", a.Nodes)
	}
	w.reach(false, pods...)
}
