package bridge_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestForeignBridge is the reference's "reuse existing" and "stable bridge MAC"
// on a bridge that another program created without setting a MAC: the kernel
// would change its MAC to our port's. If such a bridge has lost its last port and
// with it its MAC, ADD gives it one. The result has the MAC that the bridge
// keeps, so CHECK succeeds.
func TestForeignBridge(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		port, lost bool
	}{
		{name: "gateway, no ports", conf: gateway},
		{name: "layer 2, no ports", conf: layer2},
		{name: "gateway, a port with a higher MAC", conf: gateway, port: true},
		{name: "layer 2, a port with a higher MAC", conf: layer2, port: true},
		{name: "gateway, the last port lost", conf: gateway, port: true, lost: true},
		{name: "layer 2, the last port lost", conf: layer2, port: true, lost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
			if c.port {
				attrs := netlink.LinkAttrs{Name: "port", HardwareAddr: []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}, MasterIndex: link(t, "br0").Attrs().Index}
				must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable"}))
				remove := func() { must(t, netlink.LinkDel(link(t, "port"))) }
				if c.lost {
					remove()
				} else {
					t.Cleanup(remove)
				}
			}
			before := link(t, "br0").Attrs().HardwareAddr.String()
			if c.lost {
				if roles.UnicastMAC(before) != "" {
					t.Fatalf("the bridge has the MAC %s without a port", before)
				}
				before = "" // the first ADD chooses one
			}
			e := rolestest.NewEnv(t, all.Table())
			ns := netopstest.New(t)
			call := rolestest.Call{Type: "bridge", ID: "c1", Netns: ns.Path(), IfName: "eth0"}
			t.Cleanup(func() {
				gc := call
				gc.Verb, gc.Conf = "GC", rolestest.WithKeys(t, c.conf, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []string{}})
				must(t, netlink.LinkDel(link(t, "br0")))
				e.OK(gc)
			})
			var results []string
			for _, verb := range []string{"ADD", "CHECK", "DEL", "ADD", "DEL"} {
				call.Verb, call.Conf = verb, rolestest.WithKeys(t, c.conf, map[string]any{"cniVersion": "1.1.0"})
				if verb == "CHECK" {
					call.Conf = rolestest.WithKeys(t, call.Conf, map[string]any{"prevResult": json.RawMessage(results[0])})
				}
				a := e.OK(call)
				now := link(t, "br0").Attrs().HardwareAddr.String()
				if before == "" {
					before = roles.UnicastMAC(now)
				}
				if now != before {
					t.Fatalf("after %s the bridge has the MAC %s, it had %s", verb, now, before)
				}
				if verb != "ADD" {
					continue
				}
				results = append(results, a.Stdout)
				var r roles.Result
				must(t, json.Unmarshal([]byte(a.Stdout), &r))
				if r.Interfaces[0].Mac != before {
					t.Errorf("the result has the bridge's MAC %s, it is %s", r.Interfaces[0].Mac, before)
				}
			}
		})
	}
}

// TestBridgeAddress is the reference's "ensure gateway address" (v4, v6
// overlapping or not, force or not): the addresses of an existing bridge before
// and after ADD, or none after it if ADD must fail.
func TestBridgeAddress(t *testing.T) {
	for _, c := range []struct {
		name, has, subnet string
		force             bool
		want              []string
	}{
		{"the same", "10.1.0.1/24", "10.1.0.0/24", false, []string{"10.1.0.1/24"}},
		{"another of IPv4", "10.9.0.1/24", "10.1.0.0/24", false, nil},
		{"the same with another length", "10.1.0.1/16", "10.1.0.0/24", false, nil},
		{"another of IPv4, forced", "10.9.0.1/24", "10.1.0.0/24", true, []string{"10.1.0.1/24"}},
		{"overlapping of IPv6", "fd00:1::9/64", "fd00:1::/64", false, nil},
		{"wider of IPv6", "fd00:1::9/48", "fd00:1::/64", false, nil},
		{"overlapping of IPv6, forced", "fd00:1::9/64", "fd00:1::/64", true, []string{"fd00:1::1/64"}},
		{"separate IPv6", "fd00:9::1/64", "fd00:1::/64", false, []string{"fd00:1::1/64", "fd00:9::1/64"}},
		{"separate IPv6, forced", "fd00:9::1/64", "fd00:1::/64", true, []string{"fd00:1::1/64", "fd00:9::1/64"}},
		{"of the other family", "10.9.0.1/24", "fd00:1::/64", false, []string{"10.9.0.1/24", "fd00:1::1/64"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
			t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "br0"))) })
			a, err := netlink.ParseAddr(c.has)
			must(t, err)
			must(t, netlink.AddrAdd(link(t, "br0"), a))
			e := rolestest.NewEnv(t, all.Table())
			call := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "c1", Netns: netopstest.New(t).Path(), IfName: "eth0"}
			call.Conf = rolestest.WithKeys(t, `{"cniVersion":"1.1.0","name":"n","type":"bridge","bridge":"br0","isGateway":true}`, map[string]any{
				"forceAddress": c.force,
				"ipam":         map[string]any{"type": "host-local", "ranges": [][]map[string]string{{{"subnet": c.subnet}}}},
			})
			if c.want == nil {
				e.Fail(call, 103)
				c.want = []string{c.has}
			} else {
				e.OK(call)
				call.Verb = "DEL"
				t.Cleanup(func() { e.OK(call) })
			}
			addrs, err := netlink.AddrList(link(t, "br0"), netlink.FAMILY_ALL)
			must(t, err)
			var have []string
			for _, a := range addrs {
				if !a.IP.IsLinkLocalUnicast() {
					have = append(have, a.IPNet.String())
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, c.want) {
				t.Errorf("the bridge has %v, want %v", have, c.want)
			}
		})
	}
}

// TestVLANsIdle: a VLAN on another program's bridge that does not filter VLANs.
// ADD succeeds, as the reference's does, and logs a warning. The VLAN works
// after filtering is turned on.
func TestVLANsIdle(t *testing.T) {
	netopstest.NeedVLANFiltering(t)
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "br0"))) })
	p := newPods(t, rolestest.WithKeys(t, trunk, map[string]any{"cniVersion": "1.1.0"}))
	const fix = "ip link set br0 type bridge vlan_filtering 1"
	a := p.OK(p.call("ADD", "a"))
	p.results["a"] = a.Stdout
	if strings.Count(a.Stderr, fix) != 1 {
		t.Errorf("ADD logs %q, want %q once", a.Stderr, fix)
	}
	p.mentions(p.Fail(p.call("CHECK", "a"), 106), "vlan_filtering")
	if out, err := exec.Command("ip", strings.Fields(fix)[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", fix, err, out)
	}
	p.check("a")
	if b := p.OK(p.call("ADD", "b")); strings.Contains(b.Stderr, fix) {
		t.Errorf("ADD logs %q for a bridge with VLAN filtering", b.Stderr)
	}
	p.del("a", "b")
}
