package vrf_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	behindBridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"198.51.100.0/24"}]}}`
	behindPTP = `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	behindOwn = `{"type":"macvlan","master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
)

func needVRF(t testing.TB) { t.Helper(); netopstest.NeedKind(t, "vrf") }

// ruled creates a VRF and deletes it again. With the first VRF of a namespace
// the kernel adds the policy rule for VRFs and never removes it.
func ruled(t *testing.T, ns *netopstest.NS) {
	t.Helper()
	ns.Do(t, func() error {
		l := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "first"}, Table: 9999}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

// TestRole runs the suite after every kind of interface. Reference scenarios:
// add, custom routes moved, 0.4.0 cycle, VRF removed with last iface.
func TestRole(t *testing.T) {
	refused := map[string]any{"vrfname": "", "table": 255}
	tampers := []rolestest.Tamper{
		rolestest.Inside("out of the VRF", netlink.LinkSetNoMaster),
		rolestest.Inside("VRF gone", func(l netlink.Link) error {
			return change("red", netlink.LinkDel)
		}),
		rolestest.Inside("VRF down", func(netlink.Link) error { return change("red", netlink.LinkSetDown) }),
		rolestest.Inside("route left behind", func(l netlink.Link) error {
			return netlink.RouteAdd(&netlink.Route{
				LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_MAIN, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
				Gw: net.IPv4(10, 1, 0, 1), Flags: int(netlink.FLAG_ONLINK),
			})
		}),
		rolestest.Inside("in another VRF", func(l netlink.Link) error {
			other := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "other"}, Table: 77}
			if err := netlink.LinkAdd(other); err != nil {
				return err
			}
			return netlink.LinkSetMaster(l, other)
		}),
	}
	rolestest.Suite{
		Table: all.Table(), Type: "vrf",
		Confs: []rolestest.Conf{
			{
				Name: "bridge", Chain: behindBridge, JSON: `{"name":"pods","type":"vrf","vrfname":"red"}`,
				Needs: needVRF, Prepare: ruled, Refused: refused, Tamper: tampers[:4],
			},
			{
				Name: "ptp", NoSweeps: true, Chain: behindPTP, JSON: `{"name":"pods","type":"vrf","vrfname":"red","table":100}`,
				Needs: needVRF, Prepare: ruled, Refused: refused, Tamper: tampers[:1],
			},
			{
				Name: "macvlan", NoSweeps: true, Chain: behindOwn, JSON: `{"name":"pods","type":"vrf","vrfname":"red","table":1001}`,
				Needs: needVRF, Prepare: ruled, Host: func(t testing.TB) { t.Helper(); lan(t) }, Tamper: tampers[:1],
			},
		},
	}.Run(t)
}

// lan creates the device for macvlan unless it exists.
func lan(t testing.TB) {
	t.Helper()
	if _, err := netlink.LinkByName("lan0"); err != nil {
		netopstest.Master(t, "lan0")
	}
}

// change changes an interface of the calling thread's namespace.
func change(name string, how netopstest.LinkChange) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return how(l)
}

// TestAdd: the routes that the kernel does not restore are moved, IPv6 routes
// too. Addresses stay and are usable at once. Reference scenarios: add, custom
// routes moved, route filter, VRF removed with last iface.
func TestAdd(t *testing.T) {
	p := newPod(t)
	p.attach("eth0", map[string]any{"vrfname": "red", "table": 42})
	addresses, routes := of("eth0", 42)
	p.want("attached", append(append(addresses, routes...), `eth0 in "red"`, "vrf red table 42")...)
	for _, gateway := range []string{"10.7.0.1", "fd00:7::1"} {
		p.reaches(gateway, "red")
	}
	p.env.OK(p.vrf("DEL", "eth0", rolestest.Answer{}, map[string]any{"vrfname": "red"}))
	_, routes = of("eth0", unix.RT_TABLE_MAIN)
	p.want("detached", append(append(addresses, routes...), `eth0 in ""`)...)
	p.env.OK(p.vrf("DEL", "eth0", rolestest.Answer{}, map[string]any{"vrfname": "red"}))
}

// TestTwo: two interfaces in one VRF or in two, with the same addresses.
// Reference scenarios: two ifaces same/other VRF, same IP, v4/v6, VRF removed
// with last iface, table id search.
func TestTwo(t *testing.T) {
	red := map[string]any{"vrfname": "red"}
	for _, v := range []struct {
		name   string
		second map[string]any
		table  int
		vrfs   []string
	}{
		{"same VRF", red, 1, []string{"vrf red table 1"}},
		{"other VRF", map[string]any{"vrfname": "blue"}, 2, []string{"vrf red table 1", "vrf blue table 2"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			p := newPod(t)
			first := p.attach("eth0", red)
			second := p.attach("eth1", v.second)
			p.env.OK(p.vrf("CHECK", "eth0", first, red))
			p.env.OK(p.vrf("CHECK", "eth1", second, v.second))
			for ifName, prev := range map[string]rolestest.Answer{"eth0": first, "eth1": second} {
				check := p.bridge("CHECK", ifName)
				check.Conf = rolestest.WithKeys(t, check.Conf, map[string]any{"prevResult": json.RawMessage(prev.Stdout)})
				p.env.OK(check)
			}
			p.env.OK(p.vrf("DEL", "eth0", first, red))
			p.env.OK(p.vrf("CHECK", "eth1", second, v.second))
			p.env.OK(p.bridge("DEL", "eth0"))
			addresses, routes := of("eth1", v.table)
			p.want("one left", append(append(addresses, routes...), fmt.Sprintf("eth1 in %q", v.second["vrfname"]), v.vrfs[len(v.vrfs)-1])...)
			p.env.OK(p.vrf("DEL", "eth1", second, v.second))
			_, routes = of("eth1", unix.RT_TABLE_MAIN)
			p.want("none left", append(append(addresses, routes...), `eth1 in ""`)...)
		})
	}
}

// TestRefused: nothing is changed if the VRF or the interface does not meet the
// requirements. Reference scenarios: passthrough (prevResult is needed), has
// master, table conflicts.
func TestRefused(t *testing.T) {
	p := newPod(t)
	prev := p.interfaceOnly("eth0")
	addVRF := func(name string, table uint32) error {
		return netlink.LinkAdd(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: name}, Table: table})
	}
	p.ns.Do(t, func() error { return addVRF("red", 5) })
	before := p.inside()
	for _, v := range []struct {
		name string
		call rolestest.Call
		code int
		text string
	}{
		{"no prevResult", p.vrf("ADD", "eth0", rolestest.Answer{}, map[string]any{"vrfname": "red"}), 7, "prevResult"},
		{"another table", p.vrf("ADD", "eth0", prev, map[string]any{"vrfname": "red", "table": 6}), 0, `VRF \"red\" has table 5, not 6`},
		{"no VRF of that name", p.vrf("ADD", "eth0", prev, map[string]any{"vrfname": "lo"}), 0, `interface \"lo\" is a link of kind`},
	} {
		t.Run(v.name, func(t *testing.T) {
			if a := p.env.Fail(v.call, v.code); !strings.Contains(a.Stdout, v.text) {
				t.Errorf("%s does not contain %s", a.Stdout, v.text)
			}
			if d := cmp.Diff(before, p.inside()); d != "" {
				t.Errorf("changed:\n%s", d)
			}
		})
	}
	p.ns.Do(t, func() error {
		if err := addVRF("blue", 6); err != nil {
			return err
		}
		return change("eth0", func(l netlink.Link) error {
			blue, err := netlink.LinkByName("blue")
			if err != nil {
				return err
			}
			return netlink.LinkSetMaster(l, blue)
		})
	})
	if a := p.env.Fail(p.vrf("ADD", "eth0", prev, map[string]any{"vrfname": "red"}), 0); !strings.Contains(a.Stdout, `\"eth0\" is in \"blue\" already`) {
		t.Errorf("%s does not contain the master", a.Stdout)
	}
}

// TestFound: a VRF that another program created keeps its table and is not
// deleted.
func TestFound(t *testing.T) {
	p := newPod(t)
	p.ns.Do(t, func() error {
		return netlink.LinkAdd(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "red"}, Table: 5})
	})
	red := map[string]any{"vrfname": "red"}
	prev := p.attach("eth0", red)
	addresses, routes := of("eth0", 5)
	p.want("attached", append(append(addresses, routes...), "vrf red table 5", `eth0 in "red"`)...)
	p.env.OK(p.vrf("DEL", "eth0", prev, red))
	_, routes = of("eth0", unix.RT_TABLE_MAIN)
	p.want("detached", append(append(addresses, routes...), "vrf red table 5", `eth0 in ""`)...)
}

// TestInherit: DEL removes what the reference plugin made, and succeeds if the
// interface or the VRF is gone. The reference fails if the interface is gone
// (PR #1282).
func TestInherit(t *testing.T) {
	p := newPod(t)
	red := map[string]any{"vrfname": "red"}
	prev := p.interfaceOnly("eth0")
	p.ns.Do(t, func() error {
		l := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "red"}, Table: 5}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return change("eth0", func(eth0 netlink.Link) error { return netlink.LinkSetMaster(eth0, l) })
	})
	p.env.OK(p.vrf("DEL", "eth0", prev, red))
	for _, line := range p.inside() {
		if strings.HasPrefix(line, "vrf") {
			t.Errorf("left: %s", line)
		}
	}
	p.ns.Do(t, func() error { return change("eth0", netlink.LinkDel) })
	p.env.OK(p.vrf("DEL", "eth0", prev, red))
}

// TestLinkGone: the VRF is deleted with its last attachment even if the
// interface is gone already.
func TestLinkGone(t *testing.T) {
	p := newPod(t)
	red := map[string]any{"vrfname": "red"}
	p.attach("eth0", red)
	p.ns.Do(t, func() error { return change("eth0", netlink.LinkDel) })
	p.env.OK(p.vrf("DEL", "eth0", rolestest.Answer{}, red))
	p.want("detached")
}

// TestParallel attaches and detaches interfaces of one container concurrently.
// No interface loses its VRF, and no two VRFs get the same table.
func TestParallel(t *testing.T) {
	p := newPod(t)
	const interfaces = 6
	prev := map[string]rolestest.Answer{}
	for i := range interfaces {
		ifName := fmt.Sprintf("eth%d", i)
		prev[ifName] = p.interfaceOnly(ifName)
	}
	before := p.inside()
	for round := range 3 {
		var wg sync.WaitGroup
		answers := make([]rolestest.Answer, interfaces)
		for i := range interfaces {
			wg.Go(func() {
				ifName, keys := fmt.Sprintf("eth%d", i), map[string]any{"vrfname": []string{"red", "blue"}[i%2]}
				add := p.vrf("ADD", ifName, prev[ifName], keys)
				if answers[i] = p.env.Run(add); answers[i].Code != 0 || i < 2 {
					return
				}
				del := p.vrf("DEL", ifName, prev[ifName], keys)
				answers[i] = p.env.Run(del)
			})
		}
		wg.Wait()
		for i, a := range answers {
			if a.Code != 0 {
				t.Fatalf("round %d, eth%d: %s%s", round, i, a.Stdout, a.Stderr)
			}
		}
		for i := range 2 {
			ifName, keys := fmt.Sprintf("eth%d", i), map[string]any{"vrfname": []string{"red", "blue"}[i]}
			p.env.OK(p.vrf("CHECK", ifName, prev[ifName], keys))
		}
		tables := map[string]bool{}
		for _, line := range p.inside() {
			if name, table, ok := strings.Cut(line, " table "); ok && strings.HasPrefix(name, "vrf") {
				tables[table] = true
			}
		}
		if len(tables) != 2 {
			t.Errorf("tables %v of two VRFs", tables)
		}
		for i := range 2 {
			ifName, keys := fmt.Sprintf("eth%d", i), map[string]any{"vrfname": []string{"red", "blue"}[i]}
			p.env.OK(p.vrf("DEL", ifName, prev[ifName], keys))
		}
		if d := cmp.Diff(before, p.inside()); d != "" {
			t.Fatalf("round %d (-before +after):\n%s", round, d)
		}
	}
}

// TestStorm attaches and detaches with calls that are killed at random.
func TestStorm(t *testing.T) {
	needVRF(t)
	rolestest.Storm{
		Table: all.Table(), Type: "bridge", Containers: 8, Parallel: 4,
		Confs: []string{rolestest.WithKeys(t, behindBridge, map[string]any{"cniVersion": "1.1.0", "name": "pods"})},
		Chain: []string{`{"type":"vrf","vrfname":"red"}`},
	}.Run(t)
}
