package attach_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// TestCheckMTU: CHECK notices another MTU on either end of the pair than the last plugin of
// the list set. A change by tuning or of the configuration is none, nor is one by a
// third-party plugin if the configuration has no MTU.
func TestCheckMTU(t *testing.T) {
	const bridge = `{"type":"bridge","bridge":"br9","isGateway":true,"mtu":1400,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`
	plain := strings.Replace(bridge, `"mtu":1400,`, "", 1)
	tuning := func(mtu int) string { return fmt.Sprintf(`{"type":"tuning","mtu":%d}`, mtu) }
	for _, c := range []struct {
		name, version string
		plugins       []string
		// want is the MTU that CHECK expects; 0 is none.
		want int
	}{
		{"alone 0.4.0", "0.4.0", []string{bridge}, 1400},
		{"alone", "1.1.0", []string{bridge}, 1400},
		{"tuning 0.4.0", "0.4.0", []string{bridge, tuning(1300)}, 1300},
		{"tuning 1.0.0", "1.0.0", []string{bridge, tuning(1300)}, 1300},
		{"tuning", "1.1.0", []string{bridge, tuning(1300)}, 1300},
		{"tuning without mtu", "1.0.0", []string{plain, tuning(1300)}, 1300},
		{"two tuning", "1.0.0", []string{bridge, tuning(1350), tuning(1300)}, 1300},
		{"the reference's tuning", "1.1.0", []string{plain, tuning(1300)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
			prev := ""
			call := func(verb, conf string) rolestest.Call {
				name, _, _ := strings.Cut(strings.TrimPrefix(conf, `{"type":"`), `"`)
				keys := map[string]any{"name": "net", "cniVersion": c.version}
				if prev != "" {
					keys["prevResult"] = json.RawMessage(prev)
				}
				return rolestest.Call{Type: name, Verb: verb, ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: rolestest.WithKeys(t, conf, keys)}
			}
			if c.want == 0 {
				peer, err := filepath.Abs("../../../bin/peers/tuning")
				file := filepath.Join(e.PluginDir(), "tuning")
				if err := errors.Join(err, os.Remove(file), os.Symlink(peer, file)); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range c.plugins {
				prev = e.OK(call("ADD", p)).Stdout
			}
			e.OK(call("CHECK", c.plugins[0]))
			e.OK(call("CHECK", strings.Replace(c.plugins[0], "1400", "1450", 1)))
			for _, change := range []func(netopstest.LinkChange){
				func(set netopstest.LinkChange) { netopstest.ChangeHost(t, hostLink(t, prev), set) },
				func(set netopstest.LinkChange) { ns.Change(t, "eth0", set) },
			} {
				if c.want == 0 {
					break
				}
				change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1280) })
				if a := e.Fail(call("CHECK", c.plugins[0]), 106); !strings.Contains(a.Stdout, fmt.Sprintf("mtu %d, have", c.want)) {
					t.Error(a.Stdout)
				}
				change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, c.want) })
				e.OK(call("CHECK", c.plugins[0]))
			}
			for _, p := range slices.Backward(c.plugins) {
				e.OK(call("DEL", p))
			}
		})
	}
}

// hostLink returns the host's end in a result.
func hostLink(t *testing.T, result string) string {
	t.Helper()
	var r struct{ Interfaces []struct{ Name string } }
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		t.Fatal(err)
	}
	return r.Interfaces[1].Name
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
