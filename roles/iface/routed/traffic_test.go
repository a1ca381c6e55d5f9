package routed_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// testCloud is a node with two NICs in a cloud:
//
//	pods - node - nic0 10.0.0.4 ---------- 10.0.0.1 cloud 198.51.100.1 beyond the network
//	            - nic1 (without address) - 10.0.16.1      172.31.0.1 within it
//
// The cloud accepts from each NIC only packets from its own subnet. It sends
// packets for a pod to the NIC of the pod's subnet, without ARP for the pod's
// address. Only the nodes' own addresses can reach the outside.
type testCloud struct {
	*rolestest.Env
	t     *testing.T
	cloud *netopstest.NS
}

// cloudRules are the cloud's filter rules.
const cloudRules = `table inet cloud {
	chain sources {
		type filter hook prerouting priority raw; policy accept;
		iifname "wire0" ip saddr != 10.0.0.0/20 drop
		iifname "wire1" ip saddr != 10.0.16.0/20 drop
		iifname "wire0" ip6 saddr fd00:16::/64 drop
		iifname "wire1" ip6 saddr fd00::/64 drop
		ip daddr 198.51.100.1 ip saddr != { 10.0.0.4, 10.0.16.4 } drop
	}
}`

func newTestCloud(t *testing.T) *testCloud {
	t.Helper()
	w := &testCloud{Env: rolestest.NewEnv(t, all.Table()), t: t, cloud: netopstest.New(t)}
	ip(t, "link add nic0 type veth peer name wire0 netns "+w.cloud.Path())
	t.Cleanup(func() { ip(t, "link del nic0") })
	ip(t, "link add nic1 type veth peer name wire1 netns "+w.cloud.Path())
	t.Cleanup(func() { ip(t, "link del nic1") })
	mac0, mac1 := link(t, "nic0").Attrs().HardwareAddr, link(t, "nic1").Attrs().HardwareAddr
	w.cloud.Do(t, func() error {
		for _, args := range []string{
			"link set lo up", "link set wire0 up", "link set wire1 up",
			"addr add 198.51.100.1/32 dev lo", "addr add 172.31.0.1/32 dev lo",
			"addr add 10.0.0.1/20 dev wire0", "addr add 10.0.16.1/20 dev wire1",
			"addr add fe80::1/64 dev wire0 nodad", "addr add fe80::1/64 dev wire1 nodad", "addr add fd00:99::1/128 dev lo nodad",
			"route add fd00::/64 via fe80::4 dev wire0 onlink", "route add fd00:16::/64 via fe80::4 dev wire1 onlink",
			fmt.Sprintf("neigh add fe80::4 lladdr %s dev wire0", mac0), fmt.Sprintf("neigh add fe80::4 lladdr %s dev wire1", mac1),
		} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
		}
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(cloudRules)
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		for _, subnet := range []string{"10.0.0", "10.0.16"} {
			for host := 128; host < 140; host++ {
				mac, dev := mac0, "wire0"
				if subnet == "10.0.16" {
					mac, dev = mac1, "wire1"
				}
				args := fmt.Sprintf("neigh add %s.%d lladdr %s dev %s", subnet, host, mac, dev)
				if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w: %s", args, err, out)
				}
			}
		}
		return nil
	})
	for _, args := range []string{
		"link set nic0 up", "addr add 10.0.0.4/20 dev nic0", "route add default via 10.0.0.1 dev nic0", "-6 route add default via fe80::1 dev nic0",
	} {
		ip(t, args)
	}
	writeCloud(t)
	return w
}

// network is a configuration of pods with addresses of one NIC's subnets. It
// contains both NICs as known.
func network(name, nic string, keys string) string {
	return fmt.Sprintf(`{"name":%q,"type":"routed"%s,
		"uplinks":[{"link":"nic1","subnets":["10.0.16.0/20","fd00:16::/64"],"gateways":["10.0.16.1","fe80::1"]}],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.%s.0/20","rangeStart":"10.0.%[3]s.130"}],[{"subnet":"fd00:%[3]s::/64","rangeStart":"fd00:%[3]s::130"}]]}}`,
		name, keys, nic)
}

// pod is a container of a test.
type pod struct {
	*netopstest.NS
	call   rolestest.Call
	result string
	addrs  []string
}

// attach creates a container with one attachment.
func (w *testCloud) attach(conf, id string) *pod {
	w.t.Helper()
	ns := netopstest.New(w.t)
	p := &pod{NS: ns, call: rolestest.Call{
		Type: "routed", Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(w.t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}}
	p.result = w.OK(p.call).Stdout
	var r roles.Result
	must(w.t, json.Unmarshal([]byte(p.result), &r))
	for _, a := range r.IPs {
		p.addrs = append(p.addrs, a.Address.IP.String())
	}
	w.t.Cleanup(func() {
		p.call.Verb = "DEL"
		w.OK(p.call)
		w.OK(rolestest.Call{Type: "routed", Verb: "GC", Conf: rolestest.WithKeys(w.t, p.call.Conf, map[string]any{"cni.dev/valid-attachments": []string{}})})
	})
	return p
}

// sysctl sets a sysctl for the test.
func sysctl(t *testing.T, setting string) {
	t.Helper()
	name, _, _ := strings.Cut(setting, "=")
	old, err := exec.Command("sysctl", "-n", name).Output()
	must(t, err)
	must(t, exec.Command("sysctl", "-qw", setting).Run())
	t.Cleanup(func() { must(t, exec.Command("sysctl", "-qw", name+"="+strings.TrimSpace(string(old))).Run()) })
}

// at is an address with a port.
func at(addr string, port int) string { return net.JoinHostPort(addr, fmt.Sprint(port)) }

// TestTraffic: pods of both NICs reach each other, the node, the cloud's
// network through their own NIC with their own addresses, and the outside
// through the first NIC with the node's address. It also works with strict
// reverse path filtering (rp_filter 1).
func TestTraffic(t *testing.T) {
	const keys, netkitPair = `,"snat":true,"noSNAT":["172.31.0.0/16","fd00::/16"]`, `,"linkType":"netkit"`
	for _, c := range []struct{ name, strict, first, second string }{
		{"uplinks", "0", network("first", "0", keys), network("second", "16", keys)},
		{"uplinks, strict", "1", network("first", "0", keys), network("second", "16", keys)},
		{"cloud, strict", "1", cloud("first", "nic0"), cloud("second", "nic1")},
		{"netkit", "1", network("first", "0", keys+netkitPair), network("second", "16", keys+netkitPair)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "netkit" {
				needNetkit(t)
			}
			w := newTestCloud(t)
			sysctl(t, "net.ipv4.conf.nic0.rp_filter="+c.strict)
			sysctl(t, "net.ipv4.conf.nic1.rp_filter="+c.strict)
			first, second := w.attach(c.first, "a"), w.attach(c.second, "b")
			node, near, beyond, six := netopstest.Listen(t, nil, at("10.0.0.4", 2)), netopstest.Listen(t, w.cloud, at("172.31.0.1", 3)), netopstest.Listen(t, w.cloud, at("198.51.100.1", 5)), netopstest.Listen(t, w.cloud, at("fd00:99::1", 6))
			for _, p := range []*pod{first, second} {
				four := p.addrs[0]
				netopstest.CheckDatagram(t, "node to pod", nil, netopstest.Listen(t, p, at(four, 1)), "10.0.0.4")
				netopstest.CheckDatagram(t, "pod to node", p, node, four)
				netopstest.CheckDatagram(t, "pod to the network", p, near, four)
				netopstest.CheckDatagram(t, "network to pod", w.cloud, netopstest.Listen(t, p, at(four, 4)), map[bool]string{true: "10.0.0.1", false: "10.0.16.1"}[p == first])
				netopstest.CheckDatagram(t, "pod beyond", p, beyond, "10.0.0.4")
				netopstest.CheckDatagram(t, "pod to the network, IPv6", p, six, p.addrs[1])
			}
			for i := range first.addrs {
				a, b := first.addrs[i], second.addrs[i]
				netopstest.CheckDatagram(t, "first to second", first, netopstest.Listen(t, second, at(b, 7)), a)
				netopstest.CheckDatagram(t, "second to first", second, netopstest.Listen(t, first, at(a, 8)), b)
			}
		})
	}
}

// TestWithoutSNAT: all traffic of a pod leaves through its own NIC with its own
// address.
func TestWithoutSNAT(t *testing.T) {
	w := newTestCloud(t)
	w.cloud.Do(t, func() error { return exec.Command("nft", "flush", "chain", "inet", "cloud", "sources").Run() })
	w.cloud.Do(t, func() error {
		return exec.Command("nft", "add", "rule", "inet", "cloud", "sources", "iifname", "wire0", "ip", "saddr", "!=", "10.0.0.0/20", "drop").Run()
	})
	p := w.attach(network("second", "16", `,"snat":false`), "b")
	netopstest.CheckDatagram(t, "beyond", p, netopstest.Listen(t, w.cloud, at("198.51.100.1", 5)), p.addrs[0])
}

// TestNodePort: the reply to a connection to a port of the node's first address
// leaves through the first NIC, although the pod that serves it belongs to the
// second NIC.
func TestNodePort(t *testing.T) {
	for _, strict := range []string{"0", "1"} {
		t.Run("rp_filter="+strict, func(t *testing.T) {
			w := newTestCloud(t)
			sysctl(t, "net.ipv4.conf.nic0.rp_filter="+strict)
			p := w.attach(network("second", "16", ""), "b")
			w.publish(p)
			netopstest.CheckDatagramVia(t, "from beyond", w.cloud, at("10.0.0.4", 8080), netopstest.Listen(t, p, at(p.addrs[0], 80)), "10.0.0.1")
		})
	}
}

// publish forwards the node's port 8080 to the pod's port 80.
func (w *testCloud) publish(p *pod) {
	w.t.Helper()
	call := p.call
	call.Type = "portmap"
	call.Conf = rolestest.WithKeys(w.t, fmt.Sprintf(`{"name":"second","type":"portmap","cniVersion":"1.1.0","snat":true,
		"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]},"prevResult":%s}`, p.result), nil)
	w.OK(call)
	w.t.Cleanup(func() {
		call.Verb = "DEL"
		w.OK(call)
	})
}

// TestHairpin: a pod reaches itself through a port of the node.
func TestHairpin(t *testing.T) {
	for _, nic := range []string{"0", "16"} {
		t.Run("NIC "+nic, func(t *testing.T) {
			w := newTestCloud(t)
			p := w.attach(network("second", nic, `,"snat":true`), "b")
			w.publish(p)
			// The host's end has no address, so the pod sees the first NIC's
			// address.
			netopstest.CheckDatagramVia(t, "itself", p, at("10.0.0.4", 8080), netopstest.Listen(t, p, at(p.addrs[0], 80)), "10.0.0.4")
		})
	}
}

// TestReusedAddress: the address of a deleted pod can be used by the next pod
// at once, because the node's state for it was deleted with its interface.
func TestReusedAddress(t *testing.T) {
	w := newTestCloud(t)
	conf := `{"name":"one","type":"routed","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/30","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.2"}]]}}`
	for _, id := range []string{"a", "b"} {
		p := w.attach(conf, id)
		netopstest.CheckDatagram(t, "to "+id, nil, netopstest.Listen(t, p, at("10.1.0.2", 1)), "10.0.0.4")
		p.call.Verb = "DEL"
		w.OK(p.call)
	}
}

// TestAnnounce: the pod's addresses are announced to the node, as with every
// role.
func TestAnnounce(t *testing.T) {
	w := newTestCloud(t)
	netopstest.Announced(t, "", func() { w.attach(dual, "a") }, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
}

// TestLeftRule: GC removes the rule of a pod that disappeared with the state,
// or before it was recorded. Until then the rule has no effect.
func TestLeftRule(t *testing.T) {
	w := newTestCloud(t)
	conf := network("second", "16", "")
	left := "from 10.0.16.130 iif veth01234567890 table 1537 priority 1536 protocol 143"
	ip(t, "rule add "+left)
	p := w.attach(conf, "a")
	w.OK(rolestest.Call{Type: "routed", Verb: "GC", Conf: rolestest.WithKeys(t, p.call.Conf, map[string]any{
		"cni.dev/valid-attachments": []roles.AttachmentID{{ContainerID: "a", IfName: "eth0"}},
	})})
	have, err := exec.Command("ip", "rule").Output()
	must(t, err)
	if strings.Contains(string(have), "veth01234567890") || !strings.Contains(string(have), "from 10.0.16.130 iif veth") {
		t.Errorf("after GC:\n%s", have)
	}
}
