package bridge_test

import (
	"encoding/json"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestForeignBridge is the reference's "stable bridge MAC" on a bridge that was
// there: the kernel would give it our port's MAC, since nobody has set one. The
// result tells the MAC that it keeps, so CHECK finds it.
func TestForeignBridge(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		port       bool
	}{
		{"gateway, no ports", gateway, false},
		{"layer 2, no ports", layer2, false},
		{"gateway, a port with a higher MAC", gateway, true},
		{"layer 2, a port with a higher MAC", layer2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
			if c.port {
				attrs := netlink.LinkAttrs{Name: "port", HardwareAddr: []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}, MasterIndex: link(t, "br0").Attrs().Index}
				must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable"}))
				t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "port"))) })
			}
			before := link(t, "br0").Attrs().HardwareAddr.String()
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
				if now := link(t, "br0").Attrs().HardwareAddr.String(); now != before {
					t.Fatalf("after %s the bridge has the MAC %s, it had %s", verb, now, before)
				}
				if verb != "ADD" {
					continue
				}
				results = append(results, a.Stdout)
				var r roles.Result
				must(t, json.Unmarshal([]byte(a.Stdout), &r))
				if r.Interfaces[0].Mac != before {
					t.Errorf("the result tells the bridge's MAC %s, it is %s", r.Interfaces[0].Mac, before)
				}
			}
		})
	}
}
