package attach_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestSmallMTU: ADD refuses an IPv6 address on a link with an MTU below 1280 before it
// makes anything. It accepts IPv4, and IPv6 at 1280.
func TestSmallMTU(t *testing.T) {
	for _, c := range []struct {
		kind, keys string
		// lower is the MTU of the interface's master, or of the moved device.
		lower int
	}{
		{kind: "bridge", keys: `"bridge":"br9","isGateway":true,"mtu":%d`},
		{kind: "ptp", keys: `"mtu":%d`},
		{kind: "tun", keys: `"mtu":%d`},
		{kind: "macvlan", keys: `"master":"up0","mtu":%d`, lower: 1500},
		{kind: "macvlan", keys: `"master":"up0"`, lower: 1000},
		{kind: "ipvlan", keys: `"master":"up0","mtu":%d`, lower: 1500},
		{kind: "vlan", keys: `"master":"up0","vlanId":7,"mtu":%d`, lower: 1500},
		{kind: "host-device", keys: `"device":"up0"`, lower: 1000},
	} {
		t.Run(fmt.Sprint(c.kind, c.lower), func(t *testing.T) {
			if c.kind == "ipvlan" || c.kind == "vlan" || c.kind == "tun" {
				netopstest.NeedKind(t, c.kind)
			}
			if c.lower != 0 {
				makeUp0(t, c.lower)
			}
			e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
			call := func(verb string, mtu int, address, gateway string) rolestest.Call {
				keys := c.keys
				if strings.Contains(keys, "%d") {
					keys = fmt.Sprintf(keys, mtu)
				}
				name := strings.Replace(c.kind, "tun", "tap", 1)
				return rolestest.Call{Type: name, Verb: verb, ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: fmt.Sprintf(
					`{"cniVersion":"1.1.0","name":"small","type":%q,%s,"ipam":{"type":"static","addresses":[{"address":%q,"gateway":%q}]}}`,
					name, keys, address, gateway)}
			}
			start := e.State(nil, ns)
			a := e.Fail(call("ADD", 1279, "fd00:7::2/64", "fd00:7::1"), 7)
			if !strings.Contains(a.Stdout, "mtu") || !strings.Contains(a.Stdout, "1280") {
				t.Errorf("error %s", a.Stdout)
			}
			if s := e.State(nil, ns); s != start {
				t.Errorf("left:\n%s\nwas:\n%s", s, start)
			}
			e.OK(call("ADD", 1000, "10.7.0.2/24", "10.7.0.1"))
			e.OK(call("DEL", 1000, "10.7.0.2/24", "10.7.0.1"))
			if c.lower < 1280 && c.lower != 0 {
				return
			}
			e.OK(call("ADD", 1280, "fd00:7::2/64", "fd00:7::1"))
			e.OK(call("DEL", 1280, "fd00:7::2/64", "fd00:7::1"))
		})
	}
}

// makeUp0 makes the veth up0 on the host, for one test.
func makeUp0(t *testing.T, mtu int) {
	t.Helper()
	up := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0", MTU: mtu}, PeerName: "up1"}
	if err := netlink.LinkAdd(up); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(up) })
	if err := netlink.LinkSetUp(up); err != nil { // a VLAN cannot be up while its parent is down
		t.Fatal(err)
	}
}
