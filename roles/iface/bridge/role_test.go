package bridge_test

import (
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	gateway = `{"name":"gateway","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	dual = `{"name":"dual","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"mtu":1400,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"192.168.0.0/16","mtu":1300,"priority":50},{"dst":"fd00:2::/64","advmss":1200}]}}`
	egress = `{"name":"egress","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"egressAddress":["203.0.113.7","2001:db8:1::7"],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	layer2 = `{"name":"layer2","type":"bridge","bridge":"br0"}`
	guard  = `{"name":"guard","type":"bridge","bridge":"br0","isGateway":true,"macspoofchk":true,"portIsolation":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	down = `{"name":"down","type":"bridge","bridge":"br0","disableContainerInterface":true}`
	vlan = `{"name":"vlan","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"vlan":100,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	trunk   = `{"name":"trunk","type":"bridge","bridge":"br0","vlanTrunk":[{"id":101},{"minID":200,"maxID":210}]}`
	both    = `{"name":"both","type":"bridge","bridge":"br0","vlan":100,"vlanTrunk":[{"id":101}],"preserveDefaultVlan":true}`
	promisc = `{"name":"promisc","type":"bridge","bridge":"br0","promiscMode":true,"isGateway":true,"enabledad":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"fd00:1::/64"}]]}}`
)

// TestRole runs the suite over every documented feature: the reference's
// scenarios "create", "L3 v4/v6/dual + default route", "L2", "L2 vlan 100",
// "trunk", "vlan 100 + trunk", "L3 vlan 100 with/without default vlan",
// "promiscuous", "macspoofchk", "isolation", "container end down",
// "ADD/CHECK/DEL", "DEL unconfigured", "IP released on late error" (the fault
// sweep). The sweep uses three configurations that together create every kind
// of object.
func TestRole(t *testing.T) {
	vlans := netopstest.NeedVLANFiltering
	rolestest.Suite{
		Whole: true, Table: all.Table(), Type: "bridge",
		Confs: []rolestest.Conf{
			{Name: "gateway", NoSweeps: true, JSON: gateway, Tamper: append(layer3(), masquerade, rules, hairpin, forwarding, bridgeAddress)},
			{Name: "dual", JSON: dual, Tamper: append(layer3(), rolestest.MTUs(true)...)},
			{
				Name: "egress", NoSweeps: true, JSON: egress, Host: egressAddresses, Refused: map[string]any{"egressAddress": "fe80::1"},
				Tamper: []rolestest.Tamper{masquerade, rules},
			},
			{Name: "layer2", NoSweeps: true, JSON: layer2, NoAddress: true, Tamper: layer1()},
			{Name: "guard", JSON: guard, Refused: map[string]any{"mtu": -1, "hairpinMode": true, "promiscMode": true}, Tamper: []rolestest.Tamper{guards, isolation}},
			{Name: "down", NoSweeps: true, JSON: down, NoAddress: true},
			{Name: "promisc", NoSweeps: true, JSON: promisc, Tamper: []rolestest.Tamper{promiscuous}},
			{Name: "vlan", JSON: vlan, Needs: vlans, Tamper: []rolestest.Tamper{portVLAN}},
			{Name: "empty", JSON: removableConf, Tamper: []rolestest.Tamper{masquerade, bridgeAddress}},
			{Name: "trunk", NoSweeps: true, JSON: trunk, Needs: vlans, NoAddress: true},
			{Name: "both", NoSweeps: true, JSON: both, Needs: vlans, NoAddress: true, Tamper: []rolestest.Tamper{portVLAN}},
		},
	}.Run(t)
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// egressAddresses gives the node the addresses of egressAddress.
func egressAddresses(t testing.TB) {
	t.Helper()
	netopstest.LocalAddress(t, "203.0.113.7/32")
	netopstest.LocalAddress(t, "2001:db8:1::7/128")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outside is a change to the host's interface or to another object of the host.
func outside(name string, change func(*testing.T, *roles.Result)) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		change(t, r)
	}}
}

func layer1() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("container link down", netlink.LinkSetDown),
		rolestest.Inside("container link gone", netlink.LinkDel),
		rolestest.Inside("MAC changed", netopstest.OtherMAC),
		rolestest.Outside("off the bridge", netlink.LinkSetNoMaster),
		rolestest.Outside("host link down", netlink.LinkSetDown),
	}
}

func layer3() []rolestest.Tamper {
	return append(layer1(),
		rolestest.Inside("address gone", netopstest.DropAddress),
		rolestest.Inside("default route gone", netopstest.DropDefault(10, 1, 0, 1)),
	)
}

var (
	masquerade    = rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset)
	rules         = rolestest.OnHost("rules flushed", netopstest.FlushRules)
	hairpin       = rolestest.Outside("hairpin off", func(l netlink.Link) error { return netlink.LinkSetHairpin(l, false) })
	isolation     = rolestest.Outside("isolation off", func(l netlink.Link) error { return netlink.LinkSetIsolated(l, false) })
	promiscuous   = outside("promisc off", func(t *testing.T, _ *roles.Result) { must(t, netlink.SetPromiscOff(link(t, "br0"))) })
	forwarding    = rolestest.OnHost("forwarding off", netopstest.StopForwarding)
	bridgeAddress = outside("gateway address gone", func(t *testing.T, _ *roles.Result) {
		a, err := netlink.ParseAddr("10.1.0.1/24")
		must(t, err)
		must(t, netlink.AddrDel(link(t, "br0"), a))
	})
	guards = outside("guard's sets emptied", func(t *testing.T, _ *roles.Result) {
		c, err := nftables.New()
		must(t, err)
		table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "cnibox"}
		sets, err := c.GetSets(table)
		must(t, err)
		for _, s := range sets {
			c.FlushSet(s)
		}
		must(t, c.Flush())
	})
	portVLAN = rolestest.Outside("VLAN off the port", func(l netlink.Link) error { return netlink.BridgeVlanDel(l, 100, true, true, false, true) })
)
