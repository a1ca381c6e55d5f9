package vlan_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	layer3 = `{"name":"l3","type":"vlan","master":"lan0","mtu":1400,"vlanId":100,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","mtu":1300,"advmss":1200,"priority":50},{"dst":"172.16.0.0/12","table":100}]}}`
	layer3Other = `{"name":"l3","type":"vlan","master":"lan0","mtu":1400,"vlanId":101,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	layer2      = `{"name":"l2","type":"vlan","master":"lan0","vlanId":100}`
	layer2Other = `{"name":"l2","type":"vlan","master":"lan0"}`
	inside      = `{"name":"inside","type":"vlan","master":"in0","vlanId":100,"linkInContainer":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	insideOther = `{"name":"inside","type":"vlan","master":"in0","vlanId":4094,"linkInContainer":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	pool = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`
)

// TestRole runs the suite: the reference's scenario "ADD/CHECK/DEL" with a
// master in the host and with one in the container, and layer 2, which the
// reference does not support (#569). The kernel allows each VLAN of a master
// once.
func TestRole(t *testing.T) {
	netopstest.NeedKind(t, "vlan")
	netopstest.Master(t, "lan0")
	rolestest.Suite{
		Table: all.Table(), Type: "vlan",
		Confs: []rolestest.Conf{
			{Name: "layer3", Refused: map[string]any{"mtu": -1}, JSON: layer3, Other: layer3Other, Tamper: append(append(tampers(), address, otherID), rolestest.MTUs(false)...)},
			{Name: "layer2", JSON: layer2, Other: layer2Other, NoAddress: true, NoSweeps: true, Tamper: tampers()},
			{Name: "inside", JSON: inside, Other: insideOther, NoSweeps: true, Prepare: prepare, Tamper: append(tampers(), address)},
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
		rolestest.Inside("MAC", netopstest.OtherMAC),
	}
}

var (
	address = rolestest.Inside("address", netopstest.DropAddress)
	// otherID replaces the interface by one with another VLAN ID.
	otherID = rolestest.Tamper{Name: "vlanId", Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
		f, err := os.Open(ns.Path())
		must(t, err)
		defer f.Close()
		var old netlink.Link
		ns.Do(t, func() error {
			if old, err = netlink.LinkByName("eth0"); err != nil {
				return err
			}
			return netlink.LinkDel(old)
		})
		must(t, netlink.LinkAdd(&netlink.Vlan{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0", ParentIndex: link(t, "lan0").Attrs().Index, Namespace: netlink.NsFd(int(f.Fd()))},
			VlanId:    200, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q,
		}))
		ns.Do(t, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetAlias(l, old.Attrs().Alias)
		})
	}}
)

func newPod(t *testing.T) *rolestest.Pod {
	t.Helper()
	netopstest.NeedKind(t, "vlan")
	return rolestest.NewPod(t, all.Table(), "vlan")
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMTU is the reference's scenarios "MTU given / inherited", "MTU > master,
// MTU < 0 fail".
func TestMTU(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	const keys = `,"master":"lan0","vlanId":100`
	for asked, want := range map[string]int{"": 1500, `,"mtu":0`: 1500, `,"mtu":1400`: 1400, `,"mtu":1500`: 1500} {
		p.OK(p.Call("ADD", keys+asked))
		if have := p.NS.Link(t, "eth0").Attrs().MTU; have != want {
			t.Errorf("%s: mtu %d, want %d", asked, have, want)
		}
		p.OK(p.Call("DEL", keys+asked))
	}
	p.Refused(p.Call("ADD", keys+`,"mtu":1501,`+pool), 7, `1501 is more than the 1500 of the master \"lan0\"`)
	p.Refused(p.Call("ADD", keys+`,"mtu":-1,`+pool), 7, "mtu: -1 is negative")
}

// TestRefused: a failed ADD returns an error and leaves nothing. The reference
// leaves the link if it cannot get addresses, and its message calls 4095 valid.
func TestRefused(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	p.Refused(p.Call("ADD", `,"master":"lan9","vlanId":100,`+pool), 101, "lan9")
	p.Refused(p.Call("ADD", `,"master":"lan0","linkInContainer":true,`+pool), 101, "in the container")
	p.Refused(p.Call("ADD", `,"vlanId":100,`+pool), 7, "master: is required")
	p.Refused(p.Call("ADD", `,"master":"lan0","vlanId":4095,`+pool), 7, "use 0 to 4094")
	p.Refused(p.Call("ADD", `,"master":"lan0","ipam":{"type":"none"}`), 107, "none")
	p.OK(p.Call("ADD", `,"master":"lan0","vlanId":100,`+pool))
	second := p.Call("ADD", `,"master":"lan0","vlanId":100,`+pool)
	second.IfName = "eth1"
	p.Refused(second, 102, `VLAN 100 on \"lan0\" exists already`)
	p.OK(p.Call("DEL", ""+`,"master":"lan0"`))
	p.NS.Do(t, func() error { return netopstest.MakeMaster("eth0") })
	p.Refused(p.Call("ADD", `,"master":"lan0","vlanId":100,`+pool), 102, "eth0")
}

// TestDelWithoutMaster: the master was deleted, or was in a deleted container. The
// reference's DEL fails and does not release the address.
func TestDelWithoutMaster(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	start := p.State()
	same := func() {
		t.Helper()
		p.NS.Reset(t)
		if have := p.State(); have != start {
			t.Errorf("state after DEL:\n%s\nwant\n%s", have, start)
		}
	}
	const add = `,"master":"lan0","vlanId":100,` + pool
	p.OK(p.Call("ADD", add))
	p.OK(p.Call("DEL", `,"master":"lan9","vlanId":7,"mtu":9000,`+pool))
	same()

	p.OK(p.Call("ADD", add))
	c := p.Call("DEL", `,"master":"lan0","linkInContainer":true,`+pool)
	p.NS.Remove(t)
	p.OK(c)
	p.NS = netopstest.New(t)
	same()

	netopstest.Master(t, "lan1")
	p.OK(p.Call("ADD", `,"master":"lan1","vlanId":100,`+pool))
	must(t, netlink.LinkDel(link(t, "lan1")))
	p.OK(p.Call("DEL", `,"master":"lan1","vlanId":100,`+pool))
	same()
}

// TestAnnounce: neighbours with an outdated MAC for the address are updated,
// which the reference does not do (#569).
func TestAnnounce(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	const keys = `,"master":"lan0","vlanId":100,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`
	netopstest.Announced(t, "lan0x", func() { p.OK(p.Call("ADD", keys)) }, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	p.OK(p.Call("DEL", keys))
}

// TestStatus: STATUS reports the same error about the master that ADD would
// return. The reference's STATUS does not check it, and fails without ipam.
func TestStatus(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	for keys, text := range map[string]string{
		`,"master":"lan0"`:                        "",
		`,"master":"lan9"`:                        "lan9",
		`,"master":"lan0","mtu":1501`:             "1501",
		`,"master":"lan9","linkInContainer":true`: "",
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
