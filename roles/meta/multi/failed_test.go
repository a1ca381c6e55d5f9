package multi_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestNoPlugin: after a completely failed ADD, DEL calls no plugin. The plugin of a network that a
// pod names may not be installed. GC says which network it could not collect, and leaves nothing else.
func TestNoPlugin(t *testing.T) {
	for name, conf := range map[string]string{
		"plugin":    `{"name":"net-n","type":"no-such-plugin"}`,
		"last":      `{"name":"net-n","cniVersion":"1.1.0","plugins":[{"type":"thirdparty"},{"type":"no-such-plugin"}]}`,
		"ipam":      `{"name":"net-n","type":"bridge","bridge":"br-n","ipam":{"type":"no-such-plugin"}}`,
		"confusing": `{"name":"net-n","type":"bridge","bridge":"br-n","mtu":"large"}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("n", conf)
			w.wish("b,n,c")
			start := w.state()
			w.Fail(w.call("ADD"), 0)
			w.OK(w.call("DEL"))
			if a := w.Fail(w.gc(nil), 0); !strings.Contains(a.Stdout, `network \"net-n\"`) {
				t.Errorf("GC: %s", a.Stdout)
			}
			w.annotations = map[string]string{}
			w.OK(w.call("ADD"))
			w.OK(w.call("DEL"))
			if state := w.state(); strings.Contains(state, "container1") {
				t.Errorf("want\n%s\nhave\n%s", start, state)
			}
		})
	}
}

// TestOtherRuntimesAttachment: ADD leaves an existing attachment of another runtime unchanged.
func TestOtherRuntimesAttachment(t *testing.T) {
	w := newWorld(t)
	other := w.call("ADD")
	other.Type, other.IfName, other.Conf = "bridge", "net1", netB
	w.OK(other)
	before := w.ns.Snapshot(t)
	w.wish("b")
	w.Fail(w.call("ADD"), 105)
	w.OK(w.call("DEL"))
	if after := w.ns.Snapshot(t); after != before {
		t.Errorf("want\n%s\nhave\n%s", before, after)
	}
	other.Verb = "DEL"
	w.OK(other)
}

// TestInlineRefused: a configuration that would call the plugin recursively is an error. So is a
// network name that a plugin would use as a path to another directory.
func TestInlineRefused(t *testing.T) {
	w := newWorld(t)
	for conf, want := range map[string]string{
		`{"name":"x","cniVersion":"1.1.0","type":"multus","delegates":[` + netB + `]}`:   "delegates[1]: uses this plugin itself",
		`{"name":"x","plugins":[{"type":"thirdparty"},{"type":"multi","delegates":[]}]}`: "delegates[1]: uses this plugin itself",
		`{"name":"../../x","type":"bridge"}`:                                             "delegates[1].name: \"../../x\" is not the name of a network",
	} {
		w.conf["delegates"] = []json.RawMessage{json.RawMessage(netA), json.RawMessage(conf)}
		if a := w.Fail(w.call("ADD"), 7); !strings.Contains(strings.ReplaceAll(a.Stdout, `\"`, `"`), want) {
			t.Errorf("%s, want %s", a.Stdout, want)
		}
		w.OK(w.call("DEL"))
	}
	w.conf["delegates"] = []json.RawMessage{json.RawMessage(netA)}
	w.network("x", `{"name":"x\u0000y","type":"bridge"}`)
	w.wish("x")
	w.Fail(w.call("ADD"), 7)
	w.OK(w.call("DEL"))
}

// TestDefaultWishes: all requests for the default network take effect or are reported.
func TestDefaultWishes(t *testing.T) {
	w := newWorld(t)
	w.write("nets/kube-system/b.json", strings.Replace(netB, `"bridge":"br-b"`, `"bridge":"br-b","isGateway":true`, 1))
	const key = "v1.multus-cni.io/default-network"
	w.annotations[key] = `[{"name":"b","interface":"net7"}]`
	if a := w.Fail(w.call("ADD"), 7); !strings.Contains(a.Stdout, "cannot have interface") {
		t.Errorf("%s", a.Stdout)
	}
	w.annotations[key] = `[{"name":"b","interface":"eth0","io.github.cnibox":{"policyRoutes":[{"dst":"192.0.2.0/24","gw":"10.2.0.1"}]}}]`
	w.OK(w.call("ADD"))
	if state := w.ns.Snapshot(t); !strings.Contains(state, "route 192.0.2.0/24 via 10.2.0.1 dev eth0 table 100") {
		t.Errorf("no route for what eth0 sends:\n%s", state)
	}
	w.OK(w.call("DEL"))
	w.annotations[key] = `[{"name":"b","io.github.cnibox":{"ip":"none"}}]`
	if a := w.OK(w.call("ADD")); strings.Contains(a.Stdout, `"ips"`) {
		t.Errorf("addresses: %s", a.Stdout)
	}
	w.OK(w.call("DEL"))
}
