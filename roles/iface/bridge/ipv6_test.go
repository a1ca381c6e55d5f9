package bridge_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestIPv6OffByDefault: the host creates interfaces with IPv6 disabled. ADD
// enables it on the interface with the gateway's IPv6 address, whether the role
// created the interface or not.
func TestIPv6OffByDefault(t *testing.T) {
	const key = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
	must(t, os.WriteFile(key, []byte("1"), 0))
	t.Cleanup(func() { must(t, os.WriteFile(key, []byte("0"), 0)) })
	const conf = `{"cniVersion":"1.1.0","name":"six","type":"bridge","bridge":"br6","isGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.6.0.0/24"}],[{"subnet":"fd00:6::/64"}]]}}`
	for _, c := range []struct {
		name, dev string
		more      map[string]any
	}{
		{name: "new", dev: "br6"},
		{name: "there before", dev: "br6"},
		{name: "VLAN", dev: "br6.7", more: map[string]any{"vlan": 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch c.name {
			case "VLAN":
				netopstest.NeedVLANFiltering(t)
			case "there before":
				must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br6"}}))
			}
			t.Cleanup(func() {
				for _, name := range []string{"br6.7", "br6"} {
					if l, err := netlink.LinkByName(name); err == nil {
						must(t, netlink.LinkDel(l))
					}
				}
			})
			e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
			call := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: rolestest.WithKeys(t, conf, c.more)}
			added := json.RawMessage(e.OK(call).Stdout)
			call.Conf, call.Verb = rolestest.WithKeys(t, call.Conf, map[string]any{"prevResult": added}), "CHECK"
			e.OK(call)
			if s := netopstest.Snapshot(t); !strings.Contains(s, "address fd00:6::1/64 dev "+c.dev+"\n") {
				t.Errorf("host:\n%s", s)
			}
			call.Verb = "DEL"
			e.OK(call)
		})
	}
}

// TestPortLinkLocal: a bridge port has no link-local address, although the host
// forwards IPv6.
func TestPortLinkLocal(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	call := rolestest.Call{
		Type: "bridge", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(t, dual, map[string]any{"cniVersion": "1.1.0"}),
	}
	var r roles.Result
	must(t, json.Unmarshal([]byte(e.OK(call).Stdout), &r))
	netopstest.CheckOperational(t, "after ADD")
	netopstest.CheckLinkLocal(t, r.Interfaces[1].Name)
	call.Verb = "DEL"
	e.OK(call)
	call.Verb, call.Conf = "GC", rolestest.WithKeys(t, call.Conf, map[string]any{"cni.dev/valid-attachments": []any{}})
	e.OK(call)
}
