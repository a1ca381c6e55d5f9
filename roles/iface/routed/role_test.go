package routed_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	plain = `{"name":"plain","type":"routed","mtu":1400,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	dual  = `{"name":"dual","type":"routed","snat":true,"noSNAT":["192.168.0.0/16"],"hostVethPrefix":"eni",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"192.168.0.0/16","mtu":1300,"priority":50}]}}`
	netkit = `{"name":"netkit","type":"routed","linkType":"netkit","mtu":1400,"snat":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	six = `{"name":"six","type":"routed","ipam":{"type":"host-local","ranges":[[{"subnet":"fd00:1::/64"}]]}}`
	// single addresses have their own elements.
	single = `{"name":"single","type":"routed","snat":true,"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/32"},{"address":"fd00:1::2/128"}]}}`
	// others belong to a NIC that is not the default route's.
	others = `{"name":"others","type":"routed","snat":true,
		"uplinks":[{"link":"nic1","subnets":["10.0.16.0/20","fd00:16::/64"],"gateways":["10.0.16.1","fe80::1"]}],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.16.0/20","rangeStart":"10.0.16.130"}],[{"subnet":"fd00:16::/64","rangeStart":"fd00:16::130"}]]}}`
)

// TestRole runs the suite.
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "routed",
		Confs: []rolestest.Conf{
			{Name: "plain", JSON: plain, NoSweeps: true, Refused: map[string]any{"mtu": -1}, Tamper: append(append(layer1(), addressGone, gatewayRoute, defaultRoute, hostRoute, neighbour, forwarding), rolestest.MTUs(true)...)},
			{Name: "dual", JSON: dual, Tamper: []rolestest.Tamper{ruleset, rules, addressGone, hostRoute}},
			{Name: "six", JSON: six, NoSweeps: true},
			{
				Name: "netkit", JSON: netkit, Needs: needNetkit, Refused: map[string]any{"linkType": "tun"},
				Tamper: append(append(layer0(), ruleset, addressGone, gatewayRoute, defaultRoute, hostRoute), rolestest.MTUs(true)...),
			},
			{Name: "single", JSON: single, NoSweeps: true, Tamper: []rolestest.Tamper{ruleset}},
			{Name: "cloud", JSON: cloud("cloud", "nic1"), Host: nics, Tamper: []rolestest.Tamper{
				ruleset,
				iproute("rule of the pod gone", "-4 rule del priority 1536"),
			}},
			{Name: "cloud's first NIC", JSON: cloud("first", "nic0"), Host: nics, NoSweeps: true, Tamper: []rolestest.Tamper{
				ruleset,
				iproute("rule of host routes gone", "-4 rule del priority 512"),
			}},
			{Name: "others", JSON: others, Host: nics, Tamper: []rolestest.Tamper{
				ruleset,
				iproute("rule of the pod gone", "-4 rule del priority 1536"),
				iproute("rule of host routes gone", "-6 rule del priority 512"),
				iproute("rule of the mark gone", "-4 rule del priority 1024"),
				iproute("table empty", "-4 route flush table 1537"),
				iproute("NIC down", "link set nic1 down"),
			}},
		},
	}.Run(t)
}

// cloud is a configuration with addresses of one of the cloud's NICs.
func cloud(name, nic string) string {
	return fmt.Sprintf(`{"name":%q,"type":"routed","hostVethPrefix":"eni",
		"ipam":{"type":"cloud-ipam","provider":"file","file":%q,"nic":%q,"family":"dual","cooldown":0}}`, name, cloudFile, nic)
}

// cloudFile is the cloud's report about the node's NICs.
const cloudFile = "/run/cloud.json"

// writeCloud makes the cloud report both NICs.
func writeCloud(t testing.TB) {
	t.Helper()
	var nics []string
	for i, subnet := range []string{"0", "16"} {
		l, err := netlink.LinkByName(fmt.Sprint("nic", i))
		if err != nil {
			t.Fatal(err)
		}
		nics = append(nics, fmt.Sprintf(`{"mac":%q,"device":%d,"primary":%v,"network":["10.0.0.0/16","172.31.0.0/16","fd00::/16"],"subnets":[
			{"prefix":"10.0.%s.0/20","gateway":"10.0.%[4]s.1","ranges":["10.0.%[4]s.128/25"]},
			{"prefix":"fd00:%[4]s::/64","gateway":"fe80::1","ranges":["fd00:%[4]s:0:0:1::/80"]}]}`, l.Attrs().HardwareAddr, i, i == 0, subnet))
	}
	if err := os.WriteFile(cloudFile, []byte("["+strings.Join(nics, ",")+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestStorm: 40 containers, 16 at a time, with plugins that are killed at
// random.
func TestStorm(t *testing.T) {
	nics(t)
	rolestest.Storm{
		Table: all.Table(), Type: "routed", Containers: 40, Parallel: 16,
		Confs: []string{
			rolestest.WithKeys(t, dual, map[string]any{"cniVersion": "1.1.0"}),
			rolestest.WithKeys(t, others, map[string]any{"cniVersion": "1.1.0"}),
		},
	}.Run(t)
}

// nics are the node's two NICs. nic0 has the default route. Their other ends
// receive nothing.
func nics(t testing.TB) {
	t.Helper()
	if _, err := netlink.LinkByName("nic0"); err == nil {
		return
	}
	for _, args := range []string{
		"link add nic0 type veth peer name wire0", "link add nic1 type veth peer name wire1",
		"link set wire0 up", "link set wire1 up", "link set nic0 up", "link set nic1 up",
		"addr add 10.0.0.4/20 dev nic0", "route add default via 10.0.0.1 dev nic0",
	} {
		ip(t, args)
	}
	writeCloud(t)
	t.Cleanup(func() { ip(t, "link del nic0"); ip(t, "link del nic1") })
}

// ip runs iproute2 on the node.
func ip(t testing.TB, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

// iproute is a change to the node by iproute2.
func iproute(name, args string) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, _ *roles.Result) { ip(t, args) }}
}

func needNetkit(t testing.TB) { netopstest.NeedKind(t, "netkit") }

// layer1 are changes of the links, and layer0 those of links without MACs.
func layer1() []rolestest.Tamper {
	return append(layer0(), rolestest.Inside("MAC changed", netopstest.OtherMAC), rolestest.Outside("host MAC changed", netopstest.OtherMAC))
}

func layer0() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("container link down", netlink.LinkSetDown),
		rolestest.Inside("container link gone", netlink.LinkDel),
		rolestest.Outside("host link down", netlink.LinkSetDown),
	}
}

var (
	addressGone  = rolestest.Inside("address gone", netopstest.DropAddress)
	gatewayRoute = rolestest.Inside("route to the gateway gone", func(l netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet([]byte{169, 254, 1, 1}), Scope: netlink.SCOPE_LINK})
	})
	defaultRoute = rolestest.Inside("default route gone", netopstest.DropDefault(169, 254, 1, 1))
	neighbour    = rolestest.Inside("neighbour gone", func(l netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: []byte{169, 254, 1, 1}})
	})
	hostRoute  = rolestest.Outside("host's route gone", netopstest.DropRoute)
	forwarding = rolestest.OnHost("forwarding off", netopstest.StopForwarding)
	ruleset    = rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset)
	rules      = rolestest.OnHost("rules flushed", netopstest.FlushRules)
)
