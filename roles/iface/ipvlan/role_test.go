package ipvlan_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	l2 = `{"name":"l2","type":"ipvlan","master":"lan0","mtu":1400,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","mtu":1300,"advmss":1200,"priority":50},{"dst":"172.16.0.0/12","table":100}]}}`
	l3 = `{"name":"l3","type":"ipvlan","master":"lan0","mode":"l3",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	l3s    = `{"name":"l3s","type":"ipvlan","master":"lan0","mode":"l3s","ipam":{"type":"host-local","ranges":[[{"subnet":"fd00:1::/64"}]]}}`
	inside = `{"name":"inside","type":"ipvlan","master":"in0","linkInContainer":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	pool = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`
)

// TestRole runs the suite: the reference's scenarios "create", "ADD/DEL", "DEL
// unconfigured", in every mode, with a master in the host and with one in the
// container.
func TestRole(t *testing.T) {
	netopstest.NeedKind(t, "ipvlan")
	netopstest.Master(t, "lan0")
	rolestest.Suite{
		Table: all.Table(), Type: "ipvlan",
		Confs: []rolestest.Conf{
			{Name: "l2", Refused: map[string]any{"mtu": -1}, JSON: l2, Tamper: append(append(tampers(), route), rolestest.MTUs(false)...)},
			{Name: "l3", JSON: l3, NoSweeps: true, Tamper: tampers()},
			{Name: "l3s", JSON: l3s, NoSweeps: true},
			{Name: "inside", JSON: inside, NoSweeps: true, Prepare: prepare, Tamper: tampers()},
		},
	}.Run(t)
}

// prepare creates a master in a container's namespace.
func prepare(t *testing.T, ns *netopstest.NS) {
	t.Helper()
	ns.Do(t, func() error { return netopstest.MakeMaster("in0") })
}

func tampers() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("down", netlink.LinkSetDown),
		rolestest.Inside("gone", netlink.LinkDel),
		rolestest.Inside("address", netopstest.DropAddress),
		rolestest.Inside("mode", func(l netlink.Link) error {
			mode := netlink.IPVLAN_MODE_L3
			if l.(*netlink.IPVlan).Mode == mode {
				mode = netlink.IPVLAN_MODE_L2
			}
			return netopstest.SetMode(l, nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(mode)))
		}),
	}
}

var route = rolestest.Inside("default route", netopstest.DropDefault(10, 1, 0, 1))

func newPod(t *testing.T) *rolestest.Pod {
	t.Helper()
	netopstest.NeedKind(t, "ipvlan")
	return rolestest.NewPod(t, all.Table(), "ipvlan")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// prevResult is the previous plugin's result with interfaces.
func prevResult(interfaces string) string {
	return `,"prevResult":{"cniVersion":"1.1.0","interfaces":[` + interfaces + `],
		"ips":[{"address":"10.1.0.7/24","gateway":"10.1.0.1","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.53"]}}`
}

// TestChained is the reference's scenario "chained": the master, addresses,
// routes and DNS of the previous plugin, which created one interface. CHECK
// needs no master, because prevResult is the list's final result; the
// reference's CHECK fails on it.
func TestChained(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	start := p.State()
	a := p.OK(p.Call("ADD", prevResult(`{"name":"lan0"}`))).Stdout
	lan, err := netlink.LinkByName("lan0")
	must(t, err)
	if have := p.NS.Link(t, "eth0").Attrs().ParentIndex; have != lan.Attrs().Index {
		t.Errorf("the lower link is %d, want %d", have, lan.Attrs().Index)
	}
	p.OK(p.Call("CHECK", `,"prevResult":`+a))
	p.OK(p.Call("DEL", `,"prevResult":`+a))
	p.NS.Reset(t)
	if have := p.State(); have != start {
		t.Errorf("state after DEL:\n%s\nwant\n%s", have, start)
	}
	p.Refused(p.Call("ADD", prevResult(`{"name":"lan0"},{"name":"lan0x"}`)), 7, "has 2 interfaces: set master")
	p.Refused(p.Call("ADD", prevResult(`{"name":"lan9"}`)), 101, "lan9")
	p.Refused(p.Call("ADD", `,"master":"lan0","prevResult":{"cniVersion":"1.1.0"}`), 7, "ipam.type: is required")
	p.Refused(p.Call("ADD", `,"master":"lan0"`), 7, "ipam.type: is required")
}

// TestRefused includes the reference's scenario "no master". A failed ADD
// leaves nothing; the reference leaves the link and the address.
func TestRefused(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	p.Refused(p.Call("ADD", ","+pool), 101, "find master by the default route")
	p.Refused(p.Call("ADD", `,"master":"lan9",`+pool), 101, "lan9")
	p.Refused(p.Call("ADD", `,"master":"lan0","mtu":1501,`+pool), 7, `1501 is more than the 1500 of the master \"lan0\"`)
	p.Refused(p.Call("ADD", `,"master":"lan0","mode":"l4",`+pool), 7, "l2, l3, l3s")
	p.Refused(p.Call("ADD", `,"master":"lan0","ipam":{"type":"none"}`), 107, "none")
	p.NS.Do(t, func() error { return netopstest.MakeMaster("eth0") })
	p.Refused(p.Call("ADD", `,"master":"lan0",`+pool), 102, "eth0")
}

// TestDelWithoutMaster: the reference's DEL loads the whole configuration.
// Without a master and a default route it fails and frees nothing.
func TestDelWithoutMaster(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	start := p.State()
	for _, del := range []string{"," + pool, `,"master":"lan9",` + pool, `,"linkInContainer":true,` + pool} {
		p.OK(p.Call("ADD", `,"master":"lan0",`+pool))
		p.OK(p.Call("DEL", del))
		p.NS.Reset(t)
		if have := p.State(); have != start {
			t.Errorf("%s: state after DEL:\n%s\nwant\n%s", del, have, start)
		}
	}
	netopstest.Master(t, "lan1")
	p.OK(p.Call("ADD", `,"master":"lan1",`+pool))
	lan, err := netlink.LinkByName("lan1")
	must(t, err)
	must(t, netlink.LinkDel(lan))
	p.OK(p.Call("DEL", `,"master":"lan1",`+pool))
	p.NS.Reset(t)
	if have := p.State(); have != start {
		t.Errorf("state after DEL:\n%s\nwant\n%s", have, start)
	}
}

// TestAnnounce: neighbours with an outdated MAC for the address are updated
// (#673).
func TestAnnounce(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	const keys = `,"master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`
	netopstest.Announced(t, "lan0x", func() { p.OK(p.Call("ADD", keys)) }, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	p.OK(p.Call("DEL", keys))
}

// TestStatus: STATUS reports the same error about the master that ADD would
// return. Without a configured master it reports none, because the previous
// plugin may create it.
func TestStatus(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	for keys, text := range map[string]string{
		`,"master":"lan0",` + pool:            "",
		`,"master":"lan9",` + pool:            "lan9",
		`,"master":"lan0","mtu":1501,` + pool: "1501",
		`,"linkInContainer":true,` + pool:     "",
		"":                                    "",
	} {
		c := p.Call("STATUS", keys)
		c.ID, c.Netns, c.IfName = "", "", ""
		if text == "" {
			p.OK(c)
		} else {
			p.Refused(c, 50, text)
		}
	}
}
