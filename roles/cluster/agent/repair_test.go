package agent_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// TestRepairs breaks the agent's objects, one case for each fault known from flannel nodes, and
// waits until traffic flows again.
func TestRepairs(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll("-ip-masq", "-ip-masq-except=192.0.2.0/24")
	w.reach(false, pods...)
	w.reach(true, pods...)
	n, peer := w.nodes[0], w.record("k8s-dev-1")
	v4, v6 := peer.PodCIDRs[0], peer.PodCIDRs[1]
	mac := func(raw json.RawMessage) string {
		v, err := cluster.ParseVTEP(raw)
		must(t, err)
		return v.MAC.String()
	}
	before := n.picture()
	mac4, mac6 := mac(peer.BackendData), mac(peer.BackendV6Data)
	for _, cut := range []struct {
		name string
		do   []string
	}{
		{"device deleted", []string{"ip link del flannel.1"}},
		{"IPv6 device deleted", []string{"ip link del flannel-v6.1"}},
		{"both devices deleted", []string{"ip link del flannel.1", "ip link del flannel-v6.1"}},
		{"device down", []string{"ip link set flannel.1 down"}},
		{"device down and up", []string{"ip link set flannel.1 down", "ip link set flannel.1 up"}},
		{"IPv6 device down and up", []string{"ip link set flannel-v6.1 down", "ip link set flannel-v6.1 up"}},
		{"device renamed", []string{"ip link set flannel.1 down", "ip link set flannel.1 name stolen", "ip link set stolen up"}},
		{"device of another VNI in its place", []string{"ip link del flannel.1", "ip link add flannel.1 type vxlan id 5 dstport 8472 dev eth1"}},
		{"MAC rewritten", []string{"ip link set flannel.1 address 02:11:11:11:11:11"}},
		{"IPv6 MAC rewritten", []string{"ip link set flannel-v6.1 address 02:11:11:11:11:12"}},
		{"MTU rewritten", []string{"ip link set flannel.1 mtu 600"}},
		{"address removed", []string{"ip addr flush dev flannel.1"}},
		{"IPv6 addresses removed", []string{"ip -6 addr flush dev flannel-v6.1"}},
		{"route deleted", []string{"ip route del " + v4.String()}},
		{"IPv6 route deleted", []string{"ip -6 route del " + v6.String()}},
		{"both routes deleted", []string{"ip route del " + v4.String(), "ip -6 route del " + v6.String()}},
		{"nexthops flushed", []string{"ip nexthop flush"}},
		{"route to a black hole", []string{"ip route replace blackhole " + v4.String()}},
		{"neighbour deleted", []string{"ip neigh del " + v4.Addr().String() + " dev flannel.1"}},
		{"IPv6 neighbour deleted", []string{"ip neigh del " + v6.Addr().String() + " dev flannel-v6.1"}},
		{"neighbour altered", []string{"ip neigh replace " + v4.Addr().String() + " lladdr 02:33:33:33:33:33 dev flannel.1 nud permanent"}},
		{"neighbours flushed", []string{"ip neigh flush dev flannel.1 nud permanent"}},
		{"FDB entry deleted", []string{"bridge fdb del " + mac4 + " dev flannel.1 self"}},
		{"IPv6 FDB entry deleted", []string{"bridge fdb del " + mac6 + " dev flannel-v6.1 self"}},
		{"FDB entry altered", []string{"bridge fdb replace " + mac4 + " dev flannel.1 dst 172.17.8.250 self permanent"}},
		{"underlay down and up", []string{"ip link set eth1 down", "ip link set eth1 up", "connect"}},
		{"underlay renamed", []string{"ip link set eth1 down", "ip link set eth1 name eth9", "ip link set eth9 name eth1", "ip link set eth1 up", "connect"}},
		{"device enslaved", []string{"ip link add br9 type bridge", "ip link set br9 up", "ip link set flannel.1 master br9"}},
		{"ARP switched off", []string{"ip link set flannel.1 arp off"}},
		{"IPv6 device's ARP switched off", []string{"ip link set flannel-v6.1 arp off"}},
		{"alias rewritten", []string{"ip link set flannel.1 alias another"}},
		{"another program's neighbour", []string{"ip neigh add 10.244.250.0 lladdr 02:44:44:44:44:44 dev flannel.1 nud permanent"}},
		{"another program's IPv6 neighbour", []string{"ip neigh add fd00:10:244:fa:: lladdr 02:44:44:44:44:44 dev flannel-v6.1 nud permanent"}},
		{"another program's FDB entry", []string{"bridge fdb add 02:44:44:44:44:44 dev flannel.1 dst 172.17.8.250 self permanent"}},
		{"forwarding switched off", []string{"sysctl -qw net.ipv4.ip_forward=0"}},
		{"IPv6 forwarding switched off", []string{"sysctl -qw net.ipv6.conf.all.forwarding=0"}},
		{"device's forwarding switched off", []string{"sysctl -qw net.ipv4.conf.flannel/1.forwarding=0"}},
		{"ruleset flushed", []string{"nft flush ruleset"}},
	} {
		t.Run(cut.name, func(t *testing.T) {
			w.t = t
			defer func() { w.t = w.nodes[0].w.t }()
			if len(cut.do) > 1 { // the agent must not repair between two commands
				n.suspend()
			}
			for _, command := range cut.do {
				switch f := strings.Fields(command); command {
				case "connect":
					n.connect()
				default:
					n.exec(f[0], f[1:]...)
				}
			}
			n.resume()
			begin := time.Now()
			w.within(func() bool {
				return pods[0].asks(pods[1], false) && pods[1].asks(pods[0], false) && pods[0].asks(pods[1], true) && pods[1].asks(pods[0], true)
			}, func() string { return "no traffic\n" + n.dump() })
			took := time.Since(begin)
			n.until("all programmed", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 })
			var now string
			whole := w.within(func() bool { now = n.picture(); return now == before }, func() string { return "not as before:\n" + now + "\nwas\n" + before })
			t.Logf("traffic after %s, all as before after %s", took.Round(time.Millisecond), (took + whole).Round(time.Millisecond))
		})
	}
	w.t = t
	n.stop()
	if out, _ := n.try("ip", "link", "show", "stolen"); strings.Contains(out, "vxlan") {
		t.Errorf("a device of ours under another name is left: %s", out)
	}
}

// TestFormerGateways: the agent removes the gateways of former pod networks from cnibox's bridge if
// other nodes have these networks now. It names an address that another program set.
func TestFormerGateways(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	w.reach(false, pods...)
	n, peer := w.nodes[0], w.record("k8s-dev-1")
	v4, v6 := peer.PodCIDRs[0].Addr().Next().String()+"/24", peer.PodCIDRs[1].Addr().Next().String()+"/64"
	for _, alias := range []string{"cnibox:shared", "another program's"} {
		n.ip("link add former0 type bridge")
		n.exec("ip", "link", "set", "former0", "alias", alias, "up")
		n.ip("addr add " + v4 + " dev former0")
		n.ip("addr add " + v6 + " dev former0 nodad")
		if alias == "cnibox:shared" {
			w.within(func() bool { return !strings.Contains(n.ip("addr show dev former0"), "global") }, func() string { return n.ip("addr show dev former0") })
			w.reach(false, pods...)
			w.reach(true, pods...)
			n.until("all programmed", func(a answer) bool { return a.Ready && a.Reason == "" && a.Peers.Programmed == 1 })
		} else {
			n.until("the cause", func(a answer) bool {
				return strings.Contains(a.Reason, `interface "former0" has address `+v6+` of the pod network of node "k8s-dev-1": delete the address`)
			})
		}
		n.ip("link del former0")
	}
	n.until("rest", func(a answer) bool { return a.Ready && a.Reason == "" && a.Peers.Programmed == 1 })
}

// TestDetours: status names other programs' routes that take packets for peers, until they are gone.
func TestDetours(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	w.reach(false, pods...)
	n, peer := w.nodes[0], w.record("k8s-dev-1")
	part := netip.PrefixFrom(peer.PodCIDRs[0].Addr(), 25).String()
	v6 := peer.PodCIDRs[1].String()
	names := func(route string) func(answer) bool {
		return func(a answer) bool {
			return a.Ready && a.Peers.Programmed == 1 && strings.Contains(a.Reason, "another program's route "+route+` leads to the pod network of node "k8s-dev-1": delete the route`)
		}
	}
	rest := func(a answer) bool { return a.Ready && a.Reason == "" && a.Peers.Programmed == 1 }
	n.ip("route add blackhole " + part)
	n.until("the more specific route", names(part))
	n.kill()
	n.start()
	n.until("the route that existed before", names(part))
	n.ip("route del " + part)
	n.until("rest", rest)
	n.ip("-6 route add unreachable " + v6 + " metric 5")
	n.until("the preferred IPv6 route", names(v6))
	n.ip("-6 route del " + v6 + " metric 5")
	n.until("rest", rest)
	n.ip("link add tun9 type veth peer name tun9p")
	n.ip("link set tun9 up")
	n.ip("route add " + part + " dev tun9")
	n.until("the route over a link", names(part))
	n.ip("link del tun9") // the kernel deletes the route without a notification
	n.until("rest", rest)
	w.reach(false, pods...)
}

// TestBridgeDeleted: the agent restores the containers' bridge and its ports, also if the bridge was
// deleted while no agent ran.
func TestBridgeDeleted(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	n := w.nodes[0]
	pods = append(pods, n.attach())
	w.reach(false, pods...)
	bridge := func() string {
		_, out, _ := strings.Cut(n.ip("-o link show cni0"), ":")
		return out + n.ip("-br addr show dev cni0")
	}
	before := bridge()
	n.ip("link del cni0")
	w.reach(false, pods...)
	w.reach(true, pods...)
	n.kill()
	n.ip("link del cni0")
	n.start()
	w.reach(false, pods...)
	w.reach(true, pods...)
	if after := bridge(); after != before {
		t.Errorf("the bridge was %s and is %s", before, after)
	}
	n.detach(pods[0])
	n.detach(pods[2])
}

// TestRulesFlushed: after 'nft flush ruleset' or 'nft flush table' the agent restores the rules of attachments.
func TestRulesFlushed(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.start()
	n.attachBy("bridge", `{"cniVersion":"1.0.0","name":"nat","type":"bridge","bridge":"nat0","isGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","subnet":"10.99.0.0/24"}}`)
	rules := func() string {
		out, _ := n.try("nft", "list", "table", "inet", "cnibox") // the table may not exist
		return strings.Join(slices.Sorted(strings.Lines(out)), "")
	}
	before := rules()
	if !strings.Contains(before, "10.99.0.0/24") {
		t.Fatalf("no masquerade: %s", before)
	}
	for _, flush := range []string{"flush ruleset", "flush table inet cnibox", "flush ruleset"} {
		n.exec("nft", flush)
		w.within(func() bool { return rules() == before }, func() string { return "was\n" + before + "is\n" + rules() })
	}
}

// TestUnderlayDown: status says that the interface to the other nodes is down, and the exit code too.
func TestUnderlayDown(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.startAll()
	n := w.nodes[0]
	n.until("ready", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 && n.exit == nil })
	ip(t, "link set port0 down") // the cable is pulled
	n.until("the reason", func(a answer) bool {
		return !a.Ready && strings.Contains(a.Reason, `interface "eth1" is down or has no carrier`) && n.exit != nil
	})
	ip(t, "link set port0 up")
	n.until("ready again", func(a answer) bool { return a.Ready && n.exit == nil })
}

// TestPodNetworkContainsNodes: an agent whose pod network contains the nodes' network takes nothing of it and names both. If that comes
// about later, by another configuration or another address of the node, what works stays.
func TestPodNetworkContainsNodes(t *testing.T) {
	conf := func(network string) string {
		return `{"Network":"` + network + `","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}`
	}
	w := newWorld(t, 2, conf("172.16.0.0/12"))
	n := w.nodes[0]
	const refusal = `pod network 172.16.0.0/12 contains 172.17.8.0/24 of interface "eth1" to the other nodes`
	n.launch()
	w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status: " + n.log.String() })
	n.until("the refusal", func(a answer) bool { return !a.Ready && strings.Contains(a.Reason, refusal) })
	if _, err := os.Stat(w.path(n.name)); err == nil || strings.Contains(n.ip("-o link"), "flannel") {
		t.Errorf("the node is published (%v), or has a device: %s", err, n.ip("-o link"))
	}
	w.configure(conf("10.244.0.0/16"))
	n.until("a correct network", func(a answer) bool { return a.Ready })
	w.nodes[1].start()
	pods := []*pod{n.attach(), w.nodes[1].attach()}
	w.reach(false, pods...)
	end := w.exchange(pods[0], pods[1], false, 20*time.Millisecond)
	before := n.picture()
	w.configure(conf("172.16.0.0/12"))
	n.until("the refusal of a later configuration", func(a answer) bool { return a.Ready && strings.Contains(a.Reason, refusal) })
	w.configure(conf("10.244.0.0/16"))
	n.until("rest", func(a answer) bool { return a.Ready && a.Reason == "" })
	// The node has leased its address and gets a permanent one, which it prefers.
	n.ip("addr change 172.17.8.101/24 dev eth1 valid_lft 9000 preferred_lft 9000")
	n.ip("addr add 10.244.77.7/20 dev eth1")
	n.until("the refusal of a later address", func(a answer) bool {
		return !a.Ready && strings.Contains(a.Reason, `pod network 10.244.0.0/16 contains 10.244.64.0/20 of interface "eth1"`) && a.Peers.Programmed == 1
	})
	w.reach(false, pods...)
	if now := n.picture(); now != before {
		t.Errorf("changed from\n%s\nto\n%s", before, now)
	}
	n.ip("addr del 10.244.77.7/20 dev eth1")
	n.until("rest", func(a answer) bool { return a.Ready && a.Reason == "" })
	if sent, answered := end(); sent != answered {
		t.Errorf("%d of %d datagrams were lost", sent-answered, sent)
	}
}

// TestNothingThere: an agent without a registry, a default route or its interface says so on stderr at
// the default level, in status and by the exit code.
func TestNothingThere(t *testing.T) {
	for _, tt := range []struct {
		name   string
		do     func(*node)
		any    bool // the agent chooses the interface
		reason string
	}{
		{"registry", func(n *node) { must(t, os.RemoveAll(n.w.dir)) }, false, "the registry has not answered yet: "},
		{"route", func(*node) {}, true, "no interface to the other nodes: there is no default route; name the interface with -iface; there are: "},
		{"interface", func(n *node) { n.ip("link del eth1") }, false, `no interface to the other nodes: no interface matches -iface \"eth1\"`},
		{"carrier", func(*node) { ip(t, "link set port0 down") }, false, `interface \"eth1\" is down or has no carrier`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, vxlan)
			n := w.nodes[0]
			tt.do(n)
			cmd := n.agent()
			if tt.any {
				cmd.Args = slices.DeleteFunc(cmd.Args, func(arg string) bool { return arg == "-iface=eth1" })
			}
			cmd.Env = append(cmd.Env, "CNIBOX_LOG=")
			n.run(cmd)
			w.within(func() bool { return strings.Contains(n.log.String(), tt.reason) }, func() string { return "nothing on stderr: " + n.log.String() })
			a := n.status()
			if want := strings.ReplaceAll(tt.reason, `\`, ""); a.Ready || !strings.Contains(a.Reason, want) || n.exit == nil || !strings.Contains(n.exit.Error(), want) {
				t.Errorf("status %+v, error %v", a, n.exit)
			}
		})
	}
}

// TestLog: at the default level the agent logs one line for each change that an operator must know.
func TestLog(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	w.startAll()
	n := w.nodes[0]
	n.stop()
	cmd := n.agent()
	cmd.Env = append(cmd.Env, "CNIBOX_LOG=")
	n.runReady(cmd)
	n.until("one peer", func(a answer) bool { return a.Peers.Programmed == 1 })
	for _, change := range []struct {
		line string
		do   func()
	}{
		{`level=WARN msg="a node is left out" role=agent node=x-garbage `, func() { w.put("x-garbage", []byte(`{"name":`)) }},
		{`level=WARN msg="a node is no longer left out for a reason" role=agent node=x-garbage `, func() { must(t, os.Remove(w.path("x-garbage"))) }},
		{`level=WARN msg="objects of the pod network were missing or changed: they were restored" role=agent family=IPv4 first="add link \"flannel.1\""`, func() { n.ip("link del flannel.1") }},
		{`level=WARN msg="the registry cannot be read: the agent maintains the nodes that it knows"`, func() { must(t, os.Rename(w.dir, w.dir+".away")) }},
		{`level=WARN msg="the registry can be read"`, func() { must(t, os.Rename(w.dir+".away", w.dir)) }},
	} {
		change.do()
		w.within(func() bool { return strings.Contains(n.log.String(), change.line) }, func() string { return "no line " + change.line + " in " + n.log.String() })
		if got := strings.Count(n.log.String(), change.line); got != 1 {
			t.Errorf("%d lines %s in %s", got, change.line, n.log)
		}
	}
}

// TestUnderlayVanishes: the interface to the other nodes is deleted together with the devices on
// it, and comes back.
func TestUnderlayVanishes(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	n.ip("link del eth1")
	n.until("the loss and its reason", func(a answer) bool {
		return !a.Ready && strings.Contains(a.Reason, `no interface matches -iface "eth1"`)
	})
	ip(t, "link add port0 master fabric type veth peer name eth1 netns "+n.ns.Path())
	ip(t, "link set port0 up")
	n.connect()
	t.Logf("traffic %s after the interface came back", w.reach(false, pods...))
	w.reach(true, pods...)
	n.until("all programmed", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 })
}

// TestOverrun drops notifications of the kernel, which arrive while the agent stands still. Then the
// agent still notices a change.
func TestOverrun(t *testing.T) {
	w := newWorld(t, 2, dual)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	var add strings.Builder
	for i := range 100_000 { // more than the agent's receive buffer holds
		fmt.Fprintf(&add, "route add 198.%d.%d.%d dev lo\n", 18+i>>16, i>>8&255, i&255)
	}
	routes := filepath.Join(t.TempDir(), "routes")
	must(t, os.WriteFile(routes, []byte(add.String()), 0o600))
	n.suspend()
	n.ip("-batch " + routes)
	n.resume()
	n.until("the loss", func(a answer) bool { return a.IPv4.LostNotifications > 0 && a.Ready })
	n.ip("route flush dev lo proto boot")
	for range 3 {
		n.ip("route del " + w.record("k8s-dev-1").PodCIDRs[0].String())
		w.reach(false, pods...)
	}
}

// TestFilesComeBack: the agent restores the files that CNI calls read.
func TestFilesComeBack(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.start()
	n.until("rest", func(a answer) bool { return a.Ready })
	must(t, os.Remove(n.overlayFile()))
	must(t, os.Rename(filepath.Dir(n.subnetFile()), n.Dir()+"/away"))
	for _, path := range []string{n.overlayFile(), n.subnetFile()} {
		w.within(func() bool { _, err := os.Stat(path); return err == nil }, func() string { return path + " does not come back" })
	}
	for _, path := range []string{n.overlayFile(), n.subnetFile()} {
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		w.within(func() bool { is, _ := os.ReadFile(path); return len(is) > 1 }, func() string { return path + " stays as the other program wrote it" })
	}
	must(t, os.Rename(n.RunDir(), n.Dir()+"/gone")) // all files are removed at once
	w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "status is no longer served" })
}

// TestStaleState: after a complete read of the registry the agent removes what a former agent left:
// routes of nodes that were deleted while no agent ran (flannel #2554).
func TestStaleState(t *testing.T) {
	w := newWorld(t, 3, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	n, gone := w.nodes[0], w.record("k8s-dev-2")
	n.kill()
	w.nodes[2].stop()
	must(t, os.Remove(w.path("k8s-dev-2")))
	for _, args := range []string{"route show proto 142", "neigh show dev flannel.1"} {
		if out := n.ip(args); !strings.Contains(out, gone.PodCIDRs[0].Addr().String()) {
			t.Fatalf("what was made has gone with the agent: %s", out)
		}
	}
	n.start()
	for _, out := range []string{n.ip("route"), n.ip("neigh show dev flannel.1"), n.ip("nexthop"), n.exec("bridge", "fdb")} {
		if strings.Contains(out, gone.PodCIDRs[0].Addr().String()) || strings.Contains(out, "172.17.8.103") {
			t.Errorf("the deleted node is still there: %s", out)
		}
	}
	w.reach(false, pods[:2]...)
}

// TestRegistryDown: an agent that starts while its registry is down maintains the state that it knew
// last. Pods can be attached. The agent continues when the registry is back.
func TestRegistryDown(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	n := w.nodes[0]
	route := w.record("k8s-dev-1").PodCIDRs[0].String()
	w.within(func() bool { return strings.Contains(n.saved(), "k8s-dev-1") }, func() string { return "not saved: " + n.saved() })
	lost := time.Now()
	must(t, os.Rename(w.dir, w.dir+".away"))
	n.until("the loss", func(a answer) bool { return a.RegistryError != "" && a.Ready && a.RegistrySince.After(lost) })
	w.reach(false, pods...)
	n.ip("route del " + route)
	t.Logf("repaired without a registry within %s", w.reach(false, pods...))
	n.kill()
	n.ip("route add 10.244.250.0/24 dev flannel.1 proto 142") // the route of a node that the agent did not save
	n.ip("addr del " + n.addr4.String() + "/24 dev eth1")
	n.ip("addr add 172.17.8.77/24 dev eth1")
	n.launch()
	w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status: " + n.log.String() })
	n.until("that it waits, because the state may be another node's", func(a answer) bool {
		return a.RegistryError != "" && !a.Ready && strings.Contains(a.Reason, "the registry has not answered yet: ")
	})
	n.ip("addr del 172.17.8.77/24 dev eth1")
	n.connect()
	w.reach(false, pods...)
	n.ip("route del " + route)
	w.reach(false, pods...)
	n.until("its last state", func(a answer) bool { return a.Ready && a.RegistryError != "" && a.Peers.Programmed == 1 })
	n.ip("route del 10.244.250.0/24")
	w.reach(false, pods...)
	n.ip("link del flannel.1")
	w.reach(false, pods...)
	n.until("its last state", func(a answer) bool { return a.Ready && a.RegistryError != "" && a.Peers.Programmed == 1 })
	pods = append(pods, n.attach())
	w.reach(false, pods...)
	must(t, os.Rename(w.dir+".away", w.dir))
	n.until("the registry is back", func(a answer) bool { return a.Ready && a.RegistryError == "" && a.Peers.Programmed == 1 })
	w.reach(false, pods...)
}

// TestFlannelNode: a node is set up by hand like a flannel node. Its record has no VNI, like the
// article's. The agent replaces one of flannel's.
func TestFlannelNode(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	ours, theirs := w.nodes[0], w.nodes[1]
	const mac, subnet = "8e:79:a7:a7:bd:1c", "10.244.201.0/24"
	theirs.ip("link add flannel.1 address " + mac + " type vxlan id 1 dev eth1 local 172.17.8.102 dstport 8472 nolearning")
	theirs.ip("addr add 10.244.201.0/32 dev flannel.1")
	theirs.ip("link set flannel.1 up")
	w.put(theirs.name, fmt.Appendf(nil, `{"name":%q,"publicIP":"172.17.8.102","podCIDRs":[%q],"backendType":"vxlan","backendData":{"VtepMAC":%q}}`, theirs.name, subnet, mac))
	ours.start()
	own := w.record(ours.name)
	v, err := cluster.ParseVTEP(own.BackendData)
	must(t, err)
	gateway := own.PodCIDRs[0].Addr().String()
	theirs.ip("neigh replace " + gateway + " lladdr " + v.MAC.String() + " dev flannel.1 nud permanent")
	theirs.exec("bridge", "fdb", "append", v.MAC.String(), "dev", "flannel.1", "dst", "172.17.8.101", "self", "permanent")
	theirs.ip("route replace " + own.PodCIDRs[0].String() + " via " + gateway + " dev flannel.1 onlink")
	// A pod of flannel's node is an address of the node.
	theirs.ip("addr add 10.244.201.7/32 dev lo")
	pod := ours.attach()
	far := netip.MustParseAddr("10.244.201.7")
	echo(t, theirs.ns, far)
	w.within(func() bool { return pod.asksFrom(pod.addr4, far) }, func() string { return "no traffic to flannel's node\n" + ours.dump() + theirs.dump() })

	// The agent replaces flannel on the other node. Device, MAC and subnet stay, and the agent owns
	// flannel's entries from then on.
	theirs.start()
	if rec := w.record(theirs.name); rec.PodCIDRs[0].String() != subnet || !strings.Contains(string(rec.BackendData), mac) {
		t.Errorf("taken over as %+v %s", rec, rec.BackendData)
	}
	if out := theirs.ip("link show flannel.1"); !strings.Contains(out, mac) {
		t.Errorf("the device has another MAC: %s", out)
	}
	if out := theirs.ip("route show dev flannel.1"); strings.Contains(out, "proto boot") || strings.Count(out, "\n") != 1 {
		t.Errorf("routes: %s", out)
	}
	w.within(func() bool { return pod.asksFrom(pod.addr4, far) }, func() string { return "no traffic after the take-over" })
}

// TestSameVTEPMAC: two nodes have the same VTEP MAC address, because state was copied and the agents
// started at the same moment. One of them changes it, and traffic flows.
func TestSameVTEPMAC(t *testing.T) {
	w := newWorld(t, 2, dual)
	data := func(n *node) string {
		rec := w.record(n.name)
		return string(rec.BackendData) + string(rec.BackendV6Data)
	}
	n := w.nodes[0]
	n.start()
	had := data(n)
	// The other node published its record before it read this node's.
	twin := w.record(n.name)
	twin.Name, twin.PublicIP, twin.PublicIPv6 = "another", netip.MustParseAddr("172.17.8.1"), netip.MustParseAddr("2001:db8:8::1")
	twin.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.250.0/24"), netip.MustParsePrefix("fd00:10:244:fa::/64")}
	w.publish(twin)
	for _, device := range []string{"flannel.1", "flannel-v6.1"} {
		w.within(func() bool {
			_, mac, _ := strings.Cut(n.ip("-o link show "+device), "link/ether ")
			mac, _, _ = strings.Cut(mac, " ")
			return !strings.Contains(had, mac) && strings.Contains(data(n), mac)
		}, func() string { return device + " keeps the address of another node " + had })
	}
	must(t, os.Remove(w.path("another")))
	n.stop()
	state, err := os.ReadFile(filepath.Join(n.StateDir(), "keep.db"))
	must(t, err)
	must(t, os.Remove(w.path(n.name)))
	must(t, os.MkdirAll(w.nodes[1].StateDir(), 0o700))
	must(t, os.WriteFile(filepath.Join(w.nodes[1].StateDir(), "keep.db"), state, 0o600))
	for _, one := range w.nodes {
		one.launch()
	}
	for _, one := range w.nodes {
		w.within(func() bool { _, err := one.verb("agent status", nil); return err == nil }, func() string { return "no status: " + one.log.String() })
		one.until("a peer", func(a answer) bool { return a.Ready && a.Peers.Programmed == 1 })
	}
	pods := []*pod{w.nodes[0].attach(), w.nodes[1].attach()}
	w.reach(false, pods...)
	w.reach(true, pods...)
	if data(w.nodes[0]) == data(w.nodes[1]) {
		t.Errorf("both have %s", data(n))
	}
}
