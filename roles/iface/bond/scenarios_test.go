package bond_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// newPod returns a node with the links pair0 to pair3, and a container with net0 to net3.
func newPod(t *testing.T) *rolestest.Pod {
	t.Helper()
	needs(t)
	onHost(t)
	p := rolestest.NewPod(t, all.Table(), "bond")
	inContainer(t, p.NS)
	return p
}

// keys are those of a configuration with the links and further keys.
func keys(more string, links ...string) string {
	var list []string
	for _, l := range links {
		list = append(list, fmt.Sprintf(`{"name":%q}`, l))
	}
	return `,"miimon":"100","links":[` + strings.Join(list, ",") + `]` + more
}

// same fails the test if the state is not as it was.
func same(t *testing.T, p *rolestest.Pod, before, when string) {
	t.Helper()
	if after := p.State(); after != before {
		t.Errorf("%s: state differs\nwant:\n%s\nhave:\n%s", when, before, after)
	}
}

// with adds ADD's result to a call.
func with(t *testing.T, c rolestest.Call, verb, result string) rolestest.Call {
	t.Helper()
	c.Verb, c.Conf = verb, rolestest.WithKeys(t, c.Conf, map[string]any{"prevResult": json.RawMessage(result)})
	return c
}

// TestKeys checks what the kernel has of each key, and the MACs of bond and links, of which two have the same. bond-cni's scenarios: each mode,
// the keys all_slaves_active, xmit_hash_policy and tlb_dynamic_lb, equal MACs, and that the links have their MACs again after DEL.
func TestKeys(t *testing.T) {
	const first, second = "02:00:00:00:b0:00", "02:00:00:00:b0:01"
	for _, c := range []struct {
		keys string
		// macs are those of the bond and its links net0 and net1.
		macs [3]string
		is   func(*netlink.Bond) bool
	}{
		{`,"mode":"balance-rr"`, [3]string{first, first, first}, func(b *netlink.Bond) bool { return b.Mode == netlink.BOND_MODE_BALANCE_RR && b.MTU == 1500 }},
		{`,"mode":"active-backup"`, [3]string{first, first, first}, func(b *netlink.Bond) bool { return b.Mode == netlink.BOND_MODE_ACTIVE_BACKUP }},
		{`,"mode":"active-backup","failOverMac":1`, [3]string{first, first, second}, func(b *netlink.Bond) bool { return b.FailOverMac == netlink.BOND_FAIL_OVER_MAC_ACTIVE }},
		{`,"mode":"active-backup","failOverMac":2`, [3]string{first, first, second}, func(b *netlink.Bond) bool { return b.FailOverMac == netlink.BOND_FAIL_OVER_MAC_FOLLOW }},
		{`,"mode":"balance-xor","xmitHashPolicy":"layer3+4"`, [3]string{first, first, first}, func(b *netlink.Bond) bool {
			return b.Mode == netlink.BOND_MODE_BALANCE_XOR && b.XmitHashPolicy == netlink.BOND_XMIT_HASH_POLICY_LAYER3_4
		}},
		{`,"mode":"broadcast","allSlavesActive":1`, [3]string{first, first, first}, func(b *netlink.Bond) bool {
			return b.Mode == netlink.BOND_MODE_BROADCAST && b.AllSlavesActive == 1
		}},
		{`,"mode":"802.3ad","mtu":1400,"xmitHashPolicy":"encap2+3"`, [3]string{first, first, first}, func(b *netlink.Bond) bool {
			return b.Mode == netlink.BOND_MODE_802_3AD && b.MTU == 1400 && b.XmitHashPolicy == netlink.BOND_XMIT_HASH_POLICY_ENCAP2_3
		}},
		{`,"mode":"balance-tlb","tlbDynamicLb":0,"failOverMac":1`, [3]string{first, first, second}, func(b *netlink.Bond) bool {
			return b.Mode == netlink.BOND_MODE_BALANCE_TLB && b.TlbDynamicLb == 0
		}},
		{`,"mode":"balance-alb","tlbDynamicLb":1,"miimon":"50"`, [3]string{first, first, second}, func(b *netlink.Bond) bool {
			return b.Mode == netlink.BOND_MODE_BALANCE_ALB && b.TlbDynamicLb == 1 && b.Miimon == 50
		}},
	} {
		for _, place := range []string{"net", "pair"} {
			t.Run(place+c.keys, func(t *testing.T) {
				p := newPod(t)
				before := p.State()
				ks := keys(c.keys, place+"0", place+"1")
				if place == "net" {
					ks += `,"linksInContainer":true`
				}
				add := p.Call("ADD", ks)
				result := p.OK(add).Stdout
				b, ok := p.NS.Link(t, "eth0").(*netlink.Bond)
				if !ok || !c.is(b) {
					t.Errorf("eth0: %+v", b)
				}
				for i, name := range []string{"eth0", place + "0", place + "1"} {
					if have := p.NS.Link(t, name).Attrs(); have.HardwareAddr.String() != c.macs[i] || have.MTU != b.MTU || have.Flags&net.FlagUp == 0 {
						t.Errorf("%s: MAC %s, mtu %d, %s, want %s", name, have.HardwareAddr, have.MTU, have.Flags, c.macs[i])
					}
				}
				if !strings.Contains(result, c.macs[0]) {
					t.Errorf("result: %s", result)
				}
				p.OK(with(t, add, "CHECK", result))
				p.OK(p.Call("DEL", ks))
				same(t, p, before, "after DEL")
			})
		}
	}
}

// TestSameMAC bonds links with the same MAC: the second has another until DEL. The reference's new MAC is text, and DEL leaves the links with
// different MACs.
func TestSameMAC(t *testing.T) {
	for _, c := range []struct{ first, second, more string }{{"net2", "net3", `,"linksInContainer":true`}, {"pair2", "pair3", ""}} {
		p := newPod(t)
		before := p.State()
		ks := keys(`,"mode":"active-backup","failOverMac":1`+c.more, c.first, c.second)
		result := p.OK(p.Call("ADD", ks)).Stdout
		mac := p.NS.Link(t, c.second).Attrs().HardwareAddr
		if mac.String() == p.NS.Link(t, c.first).Attrs().HardwareAddr.String() || mac[0]&3 != 2 {
			t.Errorf("%s has the MAC %s", c.second, mac)
		}
		p.OK(with(t, p.Call("ADD", ks), "CHECK", result))
		p.OK(p.Call("DEL", ks))
		same(t, p, before, "after DEL")
	}
}

// TestRefused: ADD refuses what cannot work, and changes nothing.
func TestRefused(t *testing.T) {
	p := newPod(t)
	const mode = `,"mode":"balance-rr"`
	const inside = mode + `,"linksInContainer":true`
	p.Refused(p.Call("ADD", keys(mode, "pair0", "pair9")), 101, `links[1].name: on the host: link \"pair9\": does not exist (no such device): for an interface of the container set linksInContainer`)
	p.Refused(p.Call("ADD", keys(inside, "net0", "pair0")), 101, `links[1].name: in the container: link \"pair0\": does not exist (no such device): attach the network that makes it before this one`)
	p.Refused(p.Call("ADD", keys(inside, "net0", "eth0")), 7, `links[1].name: \"eth0\" is the name of the bond's own interface`)
	p.Refused(p.Call("ADD", keys(mode+`,"mtu":1501`, "pair0", "pair1")), 7, `mtu: 1501 is more than the 1500 of \"pair0\"`)
	p.Refused(p.Call("ADD", keys(inside+`,"mtu":9000`, "net1", "net0")), 7, `mtu: 9000 is more than the 1500 of \"net0\"`)
	p.Refused(p.Call("ADD", keys(mode+`,"miimon":"abc"`, "pair0", "pair1")), 7, `miimon: \"abc\" is not an interval`)
	p.Refused(p.Call("ADD", keys(mode, "pair0", "pair0")), 7, `links[1].name: \"pair0\" is listed twice`)
	p.Refused(p.Call("ADD", keys(`,"mode":"x"`, "pair0", "pair1")), 7, `mode: \"x\" is unknown`)
	p.Refused(p.Call("ADD", keys(mode+`,"mtu":1000,`+ipam, "pair0", "pair1")), 7, "IPv6 needs 1280 or more")
	p.Refused(p.Call("ADD", keys(mode+`,"ipam":{"type":"none"}`, "pair0", "pair1")), 107, "none")

	p.NS.Do(t, func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pair1"}}) })
	p.Refused(p.Call("ADD", keys(mode, "pair0", "pair1")), 102, `interface \"pair1\" exists already in the container's namespace`)
	p.NS.Do(t, func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) })
	p.Refused(p.Call("ADD", keys(inside, "net0", "net1")), 102, `interface \"eth0\" exists already`)
	p.NS.Change(t, "eth0", netlink.LinkDel)

	p.NS.Change(t, "net1", func(l netlink.Link) error {
		br, err := netlink.LinkByName("pair1")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, br)
	})
	p.Refused(p.Call("ADD", keys(inside, "net0", "net1")), 103, `links[1].name: interface \"net1\" belongs to \"pair1\"`)
	p.OK(p.Call("ADD", keys(inside, "net2", "net3")))
	second := p.Call("ADD", keys(inside, "net0", "net3"))
	second.IfName = "eth1"
	p.Refused(second, 103, `interface \"net3\" belongs to \"eth0\"`)
}

// TestHeld: a link of the host that another attachment has is refused with that attachment's name, and free after its DEL.
func TestHeld(t *testing.T) {
	p := newPod(t)
	ks := keys(`,"mode":"balance-rr"`, "pair0", "pair1")
	p.OK(p.Call("ADD", ks))
	other := netopstest.New(t)
	late := p.Call("ADD", keys(`,"mode":"balance-rr"`, "pair2", "pair1"))
	late.ID, late.Netns = "late", other.Path()
	device := rolestest.Call{Type: "host-device", Verb: "ADD", ID: "late", Netns: other.Path(), IfName: "net9", Conf: `{"cniVersion":"1.1.0","name":"devices","type":"host-device","device":"pair0"}`}
	for _, c := range []rolestest.Call{late, device} {
		p.Refused(c, 112, `taken by \"eth0\" of container \"c1\" on network \"pods\"`)
	}
	status := p.Call("STATUS", ks)
	status.ID, status.Netns, status.IfName = "", "", ""
	p.OK(status)
	p.OK(p.Call("DEL", ks))
	p.OK(device)
	p.Refused(p.Call("ADD", ks), 112, `taken by \"net9\" of container \"late\"`)
	p.OK(late)
	device.Verb, late.Verb = "DEL", "DEL"
	p.OK(device)
	p.OK(late)
	status.Conf = p.Call("STATUS", keys(`,"mode":"balance-rr"`, "pair0", "pair9")).Conf
	p.Refused(status, 50, `links[1].name: link \"pair9\"`)
}

// TestOfOtherNetworks bonds links that other networks of the container have made, as Multus does. CHECK of those networks does not see the bond's
// MAC and MTU on their interfaces. DEL may come in either order.
func TestOfOtherNetworks(t *testing.T) {
	for _, linksFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("links first ", linksFirst), func(t *testing.T) {
			p := newPod(t)
			netopstest.Master(t, "lan0")
			before := p.State()
			calls := []rolestest.Call{
				{Type: "host-device", IfName: "port1", Conf: `{"cniVersion":"1.1.0","name":"one","type":"host-device","device":"pair1"}`},
				{Type: "macvlan", IfName: "port2", Conf: `{"cniVersion":"1.1.0","name":"two","type":"macvlan","master":"lan0"}`},
				p.Call("ADD", keys(`,"mode":"balance-xor","mtu":1400,"linksInContainer":true,`+ipam, "port1", "port2")),
			}
			var checks []rolestest.Call
			for i := range calls {
				c := &calls[i]
				c.Verb, c.ID, c.Netns = "ADD", "c1", p.NS.Path()
				checks = append(checks, with(t, *c, "CHECK", p.OK(*c).Stdout))
			}
			for _, c := range checks {
				p.OK(c)
			}
			order := []int{2, 1, 0}
			if linksFirst {
				order = []int{0, 1, 2}
			}
			for _, i := range order {
				c := calls[i]
				c.Verb = "DEL"
				p.OK(c)
			}
			same(t, p, before, "after DEL")
		})
	}
}

// TestLinkGone: a link was deleted before DEL, and the others return. The reference's DEL accepts that, too.
func TestLinkGone(t *testing.T) {
	for _, ks := range []string{
		keys(`,"mode":"balance-rr","linksInContainer":true`, "net1", "net0"),
		keys(`,"mode":"balance-rr"`, "pair1", "pair0"),
	} {
		p := newPod(t)
		add := p.Call("ADD", ks)
		gone := strings.Split(ks, `"`)[9]
		result := p.OK(add).Stdout
		p.NS.Change(t, gone, netlink.LinkDel)
		p.Fail(with(t, add, "CHECK", result), 0)
		p.OK(p.Call("DEL", ks))
		onHost(t)
		p.NS.Remove(t)
		p.NS = netopstest.New(t)
		inContainer(t, p.NS)
		fresh := newPod(t)
		same(t, p, fresh.State(), "after DEL without "+gone)
	}
}

// TestFailover sends datagrams through a bond of two links, and through the second when the first has lost its carrier.
func TestFailover(t *testing.T) {
	p := newPod(t)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wire"}}
	must(t, netlink.LinkAdd(br))
	t.Cleanup(func() { must(t, netlink.LinkDel(br)) })
	peers := make([]netlink.Link, 2)
	for i := range peers {
		l, err := netlink.LinkByName(fmt.Sprintf("pair%dx", i))
		must(t, err)
		must(t, netlink.LinkSetMaster(l, br))
		peers[i] = l
	}
	must(t, netopstest.LinkUp("wire", "10.1.0.1/24", "fd00:1::1/64"))
	ks := keys(`,"mode":"active-backup","failOverMac":1,"miimon":"10",`+ipam, "pair0", "pair1")
	result := p.OK(p.Call("ADD", ks)).Stdout
	server := netopstest.Listen(t, nil, "10.1.0.1:5000")
	netopstest.CheckDatagram(t, "both links", p.NS, server, "10.1.0.2")
	must(t, netlink.LinkSetDown(peers[0]))
	await.Until(t, func() bool {
		bond, ok := p.NS.Link(t, "eth0").(*netlink.Bond)
		return ok && bond.ActiveSlave == p.NS.Link(t, "pair1").Attrs().Index
	}, func() string { return "pair1 did not become the active link" })
	netopstest.CheckDatagram(t, "the second link", p.NS, server, "10.1.0.2")
	p.OK(with(t, p.Call("ADD", ks), "CHECK", result)) // the bond has the other link's MAC
	must(t, netlink.LinkSetUp(peers[0]))
	p.OK(p.Call("DEL", ks))
}

// TestNoCarrier bonds links that have no carrier, as cards have none for seconds after they were set up. ADD does not wait for it.
func TestNoCarrier(t *testing.T) {
	p := newPod(t)
	for _, peer := range []string{"pair0x", "pair1x"} {
		l, err := netlink.LinkByName(peer)
		must(t, err)
		must(t, netlink.LinkSetDown(l))
		t.Cleanup(func() { must(t, netlink.LinkSetUp(l)) })
	}
	ks := keys(`,"mode":"802.3ad",`+ipam, "pair0", "pair1")
	a := p.OK(p.Call("ADD", ks))
	if strings.Contains(a.Stderr, "packets may be lost") {
		t.Errorf("ADD waited: %s", a.Stderr)
	}
	p.OK(with(t, p.Call("ADD", ks), "CHECK", a.Stdout))
	p.OK(p.Call("DEL", ks))
}

// TestCard: the MTU is an error if it is more than that of the card whose virtual function a link of the container is.
func TestCard(t *testing.T) {
	needs(t)
	card, f := netopstest.NeedFunctions(t)
	pf, err := netlink.LinkByName(card)
	must(t, err)
	p := rolestest.NewPod(t, all.Table(), "bond")
	fd, err := os.Open(p.NS.Path())
	must(t, err)
	defer fd.Close()
	for _, one := range f[:2] {
		own, err := netlink.LinkByName(one.Link)
		must(t, err)
		must(t, netlink.LinkSetVfHardwareAddr(pf, one.Number, own.Attrs().HardwareAddr))
		must(t, netlink.LinkSetNsFd(own, int(fd.Fd())))
		p.NS.Rename(t, one.Link, fmt.Sprintf("net%d", one.Number))
	}
	give := p.Call("ADD", keys(`,"mode":"active-backup","failOverMac":1,"linksInContainer":true`, "net0", "net1"))
	must(t, netlink.LinkSetMTU(pf, 1400))
	p.Refused(give, 7, `mtu: 1500 is more than the 1400 of \"`+card+`\", whose virtual function`)
	must(t, netlink.LinkSetMTU(pf, 1500))
	p.OK(give)
	give.Verb = "DEL"
	p.OK(give)
}

// TestReturn ends the namespace of a bond of PCI devices. The kernel moves them back to the host. The next call gives them their MACs, MTUs and
// states.
func TestReturn(t *testing.T) {
	needs(t)
	nic := netopstest.NeedDevices(t)
	for _, name := range []string{"DEL", "DEL with an empty CNI_NETNS", "GC", "ADD for another container", "DEL without a record"} {
		t.Run(name, func(t *testing.T) {
			p := rolestest.NewPod(t, all.Table(), "bond")
			l, err := netlink.LinkByName(nic[1])
			must(t, err)
			must(t, netlink.LinkSetUp(l))
			t.Cleanup(func() { must(t, netlink.LinkSetDown(l)) })
			ks := keys(`,"mode":"balance-rr","mtu":1400,`+ipam, nic[0], nic[1])
			before := p.Env.State(nil)
			p.OK(p.Call("ADD", ks))
			must(t, unix.Unmount(p.NS.Path(), unix.MNT_DETACH))
			must(t, os.Remove(p.NS.Path()))
			del := p.Call("DEL", ks)
			switch name {
			case "DEL":
				p.OK(del)
			case "DEL with an empty CNI_NETNS":
				del.Netns = ""
				p.OK(del)
			case "GC":
				gc := p.Call("GC", ks+`,"cni.dev/valid-attachments":[]`)
				gc.ID, gc.Netns, gc.IfName = "", "", ""
				p.OK(gc)
			case "ADD for another container":
				add := p.Call("ADD", ks)
				add.ID, add.Netns = "c2", netopstest.New(t).Path()
				p.OK(add)
				add.Verb = "DEL"
				p.OK(add)
			case "DEL without a record":
				awaitReturn(t, nic)
				must(t, os.RemoveAll(p.RunDir()))
				must(t, os.Mkdir(p.RunDir(), 0o700))
				p.OK(del)
				must(t, netlink.LinkSetUp(l)) // only the record has it
			}
			if after := p.Env.State(nil); after != before {
				t.Errorf("state differs\nwant:\n%s\nhave:\n%s", before, after)
			}
		})
	}
}

// awaitReturn waits until both devices are back on the host.
func awaitReturn(t *testing.T, nic [2]string) {
	t.Helper()
	await.Until(t, func() bool {
		for _, name := range nic {
			if _, err := netlink.LinkByName(name); err != nil {
				return false
			}
		}
		return true
	}, func() string { return "the devices did not come back" })
}

// TestStorm attaches and detaches bonds of the host's links repeatedly, and kills a third of the calls.
func TestStorm(t *testing.T) {
	needs(t)
	onHost(t)
	var confs []string
	for _, c := range []string{conf("pair0", "pair1", `"mode":"balance-rr",`+ipam), conf("pair2", "pair3", `"mode":"active-backup",`+ipam)} {
		confs = append(confs, rolestest.WithKeys(t, c, map[string]any{"cniVersion": "1.1.0"}))
	}
	rolestest.Storm{Table: all.Table(), Type: "bond", Confs: confs, Containers: 2, Parallel: 2}.Run(t)
}

// TestMany bonds the links of 50 containers at once, and detaches all at once.
func TestMany(t *testing.T) {
	p := newPod(t)
	before := p.Env.State(nil)
	calls := make([]rolestest.Call, 50)
	for i := range calls {
		ns := netopstest.New(t)
		inContainer(t, ns)
		calls[i] = p.Call("ADD", keys(`,"mode":"active-backup","linksInContainer":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`, "net0", "net1"))
		calls[i].ID, calls[i].Netns = "c"+strconv.Itoa(i), ns.Path()
	}
	for _, verb := range []string{"ADD", "DEL"} {
		var all sync.WaitGroup
		for _, c := range calls {
			c.Verb = verb
			all.Go(func() {
				if out, err := p.Cmd(c).Output(); err != nil {
					t.Errorf("%s: %v: %s", verb, err, out)
				}
			})
		}
		all.Wait()
	}
	if after := p.Env.State(nil); after != before {
		t.Errorf("state differs\nwant:\n%s\nhave:\n%s", before, after)
	}
}
