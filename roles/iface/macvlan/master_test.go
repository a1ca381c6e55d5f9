package macvlan_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func newPod(t *testing.T) *rolestest.Pod {
	t.Helper()
	return rolestest.NewPod(t, all.Table(), "macvlan")
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// routeVia adds a default route through a link of the calling thread's
// namespace.
func routeVia(name string, metric int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Scope: netlink.SCOPE_LINK, Priority: metric})
}

const (
	pool    = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`
	tooTiny = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/30","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.2"}]]}`
)

// TestDefaultMaster is the reference's scenario "no master": the device of the
// best default route, in the host or in the container. CHECK and DEL do not
// look it up again after the route has changed; the reference's CHECK fails
// without a default route.
func TestDefaultMaster(t *testing.T) {
	netopstest.Master(t, "lan0")
	netopstest.Master(t, "lan1")
	p := newPod(t)
	p.Refused(p.Call("ADD", ""), 101, "find master by the default route")
	must(t, routeVia("lan1", 200))
	must(t, routeVia("lan0", 100))
	result := p.OK(p.Call("ADD", "")).Stdout
	if have, want := p.NS.Link(t, "eth0").Attrs().ParentIndex, link(t, "lan0").Attrs().Index; have != want {
		t.Errorf("the lower link is %d, want %d", have, want)
	}
	must(t, netlink.LinkSetDown(link(t, "lan0"))) // removes its routes too
	must(t, netlink.LinkSetDown(link(t, "lan1")))
	p.OK(p.Call("CHECK", `,"prevResult":`+result))
	p.OK(p.Call("DEL", ""))
	p.NS.Do(t, func() error {
		if err := netopstest.MakeMaster("in0"); err != nil {
			return err
		}
		return routeVia("in0", 0)
	})
	p.OK(p.Call("ADD", `,"linkInContainer":true`))
	p.OK(p.Call("DEL", `,"linkInContainer":true`))
}

// TestFailedAdd: a failed ADD leaves nothing. The reference leaves the link if
// it cannot get or set addresses.
func TestFailedAdd(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	p.Refused(p.Call("ADD", `,"master":"lan9",`+pool), 101, `lan9`)
	p.Refused(p.Call("ADD", `,"master":"lan0","linkInContainer":true,`+pool), 101, "in the container")
	p.Refused(p.Call("ADD", `,"master":"lan0","mtu":1501,`+pool), 7, `1501 is more than the 1500 of the master \"lan0\"`)
	p.Refused(p.Call("ADD", `,"master":"lan0","mtu":-1,`+pool), 7, "mtu")
	p.Refused(p.Call("ADD", `,"master":"lan0","mode":"source",`+pool), 7, "bridge, private, vepa, passthru")
	p.Refused(p.Call("ADD", `,"master":"lan0","ipam":{"type":"none"}`), 107, "none")
	p.OK(p.Call("ADD", `,"master":"lan0",`+tooTiny))
	second := p.Call("ADD", `,"master":"lan0",`+tooTiny)
	second.IfName = "eth1"
	p.Refused(second, 11, "no addresses left")
	p.OK(p.Call("DEL", ""))
	p.NS.Do(t, func() error { return netopstest.MakeMaster("eth0") })
	p.Refused(p.Call("ADD", `,"master":"lan0",`+pool), 102, "eth0")
}

// TestDelWithoutMaster: DEL does not look for the master, which may be deleted or changed
// in the configuration. The reference's issues #953, #954 and #830.
func TestDelWithoutMaster(t *testing.T) {
	for name, after := range map[string]func(*testing.T, *rolestest.Pod) rolestest.Call{
		"master gone": func(t *testing.T, p *rolestest.Pod) rolestest.Call {
			must(t, netlink.LinkDel(link(t, "lan0")))
			return p.Call("DEL", `,"master":"lan0",`+pool)
		},
		"another master that is not there": func(_ *testing.T, p *rolestest.Pod) rolestest.Call {
			return p.Call("DEL", `,"master":"lan9","mode":"private","mtu":9000,`+pool)
		},
		"no master and no default route": func(_ *testing.T, p *rolestest.Pod) rolestest.Call { return p.Call("DEL", ","+pool) },
		"master looked for in a dead container": func(t *testing.T, p *rolestest.Pod) rolestest.Call {
			c := p.Call("DEL", `,"linkInContainer":true,`+pool)
			p.NS.Remove(t)
			p.NS = netopstest.New(t)
			return c
		},
		"record lost": func(t *testing.T, p *rolestest.Pod) rolestest.Call {
			found, err := filepath.Glob(p.RunDir() + "/*")
			must(t, err)
			for _, f := range found {
				must(t, os.RemoveAll(f))
			}
			return p.Call("DEL", ","+pool)
		},
	} {
		t.Run(name, func(t *testing.T) {
			netopstest.Master(t, "lan0")
			p := newPod(t)
			start := p.State()
			p.OK(p.Call("ADD", `,"master":"lan0",`+pool))
			p.OK(after(t, p))
			p.NS.Reset(t)
			var kept []string
			for line := range strings.Lines(start) {
				if _, err := netlink.LinkByName("lan0"); err == nil || !strings.Contains(line, "lan0") {
					kept = append(kept, line)
				}
			}
			if have := p.State(); have != strings.Join(kept, "") {
				t.Errorf("state after DEL:\n%s\nwant\n%s", have, strings.Join(kept, ""))
			}
		})
	}
}

// TestMAC is the reference's scenarios "MAC via CNI_ARGS / runtimeConfig", each
// with the master in the host and in the container.
func TestMAC(t *testing.T) {
	netopstest.Master(t, "lan0")
	for name, where := range map[string]string{"host": `,"master":"lan0"`, "container": `,"master":"in0","linkInContainer":true`} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			prepare(t, p.NS)
			for args, keys := range map[string]string{
				"MAC=02:00:00:00:00:01": "",
				"":                      `,"runtimeConfig":{"mac":"02:00:00:00:00:01"}`,
				"IgnoreUnknown=1;A=b":   `,"mac":"02:00:00:00:00:01"`,
			} {
				c := p.Call("ADD", where+keys)
				c.Args = args
				if out := p.OK(c).Stdout; !strings.Contains(out, "02:00:00:00:00:01") || !strings.Contains(out, p.NS.Path()) {
					t.Errorf("result %s", out)
				}
				if have := p.NS.Link(t, "eth0").Attrs().HardwareAddr.String(); have != "02:00:00:00:00:01" {
					t.Errorf("MAC is %s", have)
				}
				c.Verb = "DEL"
				p.OK(c)
			}
		})
	}
}

// TestPassthru: the interface has its master's MAC, and no other interface can
// use the master. A requested MAC is set on the master too; DEL restores the
// master's own.
func TestPassthru(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	start, mac := p.State(), link(t, "lan0").Attrs().HardwareAddr.String()
	const keys = `,"master":"lan0","mode":"passthru"`
	a := p.OK(p.Call("ADD", keys)).Stdout
	if !strings.Contains(a, mac) {
		t.Errorf("result %s\nwant the master's MAC %s", a, mac)
	}
	p.OK(p.Call("CHECK", keys+`,"prevResult":`+a))
	second := p.Call("ADD", `,"master":"lan0"`)
	second.IfName = "eth1"
	p.Refused(second, 0, "eth1")
	p.OK(p.Call("DEL", keys))
	const asked = keys + `,"mac":"02:00:00:00:00:01"`
	a = p.OK(p.Call("ADD", asked)).Stdout
	p.OK(p.Call("CHECK", asked+`,"prevResult":`+a))
	if have := link(t, "lan0").Attrs().HardwareAddr.String(); have != "02:00:00:00:00:01" {
		t.Errorf("the master's MAC is %s", have)
	}
	p.OK(p.Call("DEL", asked))
	if have := p.State(); have != start {
		t.Errorf("state after DEL:\n%s\nwant\n%s", have, start)
	}
}

// TestAnnounce: neighbours with an outdated MAC for the address are updated.
// The reference does not wait either, but it updates IPv6 neighbours only as
// far as duplicate address detection allows (#35, moby#47176).
func TestAnnounce(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	netopstest.Announced(t, "lan0x", func() {
		p.OK(p.Call("ADD", `,"master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`))
	}, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	p.OK(p.Call("DEL", ""))
}

// TestStatus: STATUS reports the same error about the master that ADD would
// return. The reference's STATUS does not check it.
func TestStatus(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := newPod(t)
	for keys, word := range map[string]string{
		`,"master":"lan0"`:            "",
		`,"master":"lan9"`:            "lan9",
		``:                            "default route",
		`,"master":"lan0","mtu":1501`: "1501",
		`,"master":"lan9","linkInContainer":true`: "",
	} {
		c := p.Call("STATUS", keys)
		c.ID, c.Netns, c.IfName = "", "", ""
		if word == "" {
			p.OK(c)
		} else {
			p.Refused(c, 50, word)
		}
	}
}

// TestOtherParent: CHECK reports an interface that was moved to another master.
func TestOtherParent(t *testing.T) {
	netopstest.Master(t, "lan0")
	netopstest.Master(t, "lan1")
	p := newPod(t)
	a := p.OK(p.Call("ADD", `,"master":"lan0"`)).Stdout
	p.OK(p.Call("CHECK", `,"master":"lan0","prevResult":`+a))
	p.Fail(p.Call("CHECK", `,"master":"lan1","prevResult":`+a), 106)
	p.Fail(p.Call("CHECK", `,"master":"lan9","prevResult":`+a), 106)
	p.OK(p.Call("DEL", ""))
}

// TestStorm: 60 containers, 16 at a time, with plugins that are killed at
// random.
func TestStorm(t *testing.T) {
	netopstest.Master(t, "lan0")
	rolestest.Storm{
		Table: all.Table(), Type: "macvlan", Containers: 60, Parallel: 16,
		Confs: []string{`{"cniVersion":"1.1.0","name":"storm","type":"macvlan","master":"lan0",` + pool + `}`},
	}.Run(t)
}
