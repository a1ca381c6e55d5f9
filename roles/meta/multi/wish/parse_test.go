package wish

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnibox/cnibox/roles"
)

func raw(s string) json.RawMessage { return json.RawMessage(s) }

// TestParse: the annotation's two forms. The reference's tests: "parses pod network annotation in
// comma-separated format", "… in JSON format", "… with namespace", "… with interface", "default
// network with JSON".
func TestParse(t *testing.T) {
	gw4, gw6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		name, value string
		want        []Network
	}{
		{"none", "", nil},
		{"blank", " \n", nil},
		{"empty list", "[]", []Network{}},
		{"one", "net-a", []Network{{Namespace: "pods", Name: "net-a"}}},
		{
			"short", " net-a , other/net-b@eth1,net-a@x_Y.1", []Network{
				{Namespace: "pods", Name: "net-a"},
				{Namespace: "other", Name: "net-b", IfName: "eth1"},
				{Namespace: "pods", Name: "net-a", IfName: "x_Y.1"},
			},
		},
		{
			"standard's example", `[ {"name":"net-a"}, { "name":"net-b", "ips": ["1.2.3.4"], "mac": "aa:bb:cc:dd:ee:ff" }, { "name":"net-c", "namespace":"other-ns" } ]`, []Network{
				{Namespace: "pods", Name: "net-a"},
				{Namespace: "pods", Name: "net-b", IPs: []string{"1.2.3.4"}, MAC: "aa:bb:cc:dd:ee:ff"},
				{Namespace: "other-ns", Name: "net-c"},
			},
		},
		{
			"everything", `[{"name": "net.b", "namespace": "", "interface": "net7", "ips": ["10.2.2.42/24", "2001:DB8::5/64", "fd00::0:9"],
				"mac": "02-23-45-67-89-01", "infiniband-guid": "24:8A:07:03:00:8d:ae:2f", "cni-args": {"spoofchk": "on", "n": 1e400},
				"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "org.example.note": 2}],
				"bandwidth": {"ingressRate": 2048, "ingressBurst": 300}, "default-route": ["10.0.0.1", "fd00::1"], "deviceID": "0000:18:02.5",
				"org.example.key-name": [1], "example.com/key": 2,
				"io.github.cnibox": {"policyRoutes": [{"dst": "10.9.1.2/16", "gw": "10.2.2.1"}, {"dst": "::/0"}]}}]`,
			[]Network{{
				Namespace: "pods", Name: "net.b", IfName: "net7", IPs: []string{"10.2.2.42/24", "2001:db8::5/64", "fd00::9"},
				MAC: "02:23:45:67:89:01", InfinibandGUID: "24:8a:07:03:00:8d:ae:2f", CNIArgs: raw(`{"spoofchk": "on", "n": 1e400}`),
				PortMappings: raw(`[{"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "org.example.note": 2}]`),
				Bandwidth:    raw(`{"ingressRate": 2048, "ingressBurst": 300}`), DefaultRoute: []netip.Addr{gw4, gw6}, DeviceID: "0000:18:02.5",
				Extras: Extras{PolicyRoutes: []PolicyRoute{{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParseAddr("10.2.2.1")}, {Dst: netip.MustParsePrefix("::/0")}}},
			}},
		},
		{"claim", `[{"name": "net-b", "ipam-claim-reference": "vm123.tenantblue"}]`, []Network{{Namespace: "pods", Name: "net-b", IPAMClaim: "vm123.tenantblue"}}},
		{"no addresses", `[{"name": "a", "io.github.cnibox": {"ip": "none"}}]`, []Network{{Namespace: "pods", Name: "a", Extras: Extras{IP: "none"}}}},
		{"empty default-route is not none", `[{"name": "a", "default-route": []}]`, []Network{{Namespace: "pods", Name: "a", DefaultRoute: []netip.Addr{}}}},
		{
			"as encoding/json reads it", `[{"Name": "a", "INTERFACE": "x", "ips": null, "mac": "", "bandwidth": {}, "portMappings": [], "cni-args": null}]`,
			[]Network{{Namespace: "pods", Name: "a", IfName: "x"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			have, err := Parse(map[string]string{NetworksKey: c.value, "cni": ",,,"}, "pods")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, have.Networks, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("-want +have\n%s", diff)
			}
			// The store's form must decode to the same value.
			kept, err := json.Marshal(have.Networks)
			if err != nil {
				t.Fatal(err)
			}
			var back []Network
			if err := json.Unmarshal(kept, &back); err != nil {
				t.Fatal(err)
			}
			compact := cmp.Transformer("compact", func(r json.RawMessage) string { b, _ := json.Marshal(r); return string(b) })
			if diff := cmp.Diff(have.Networks, back, compact, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("kept: -want +have\n%s", diff)
			}
		})
	}
}

// TestDefault: the other annotation, whose namespace the caller sets.
func TestDefault(t *testing.T) {
	for value, want := range map[string]*Network{
		"":                                  nil,
		"net-a":                             {Name: "net-a"},
		"kube-system/net-a":                 {Namespace: "kube-system", Name: "net-a"},
		`[{"name":"net-a","ips":["1::2"]}]`: {Name: "net-a", IPs: []string{"1::2"}},
	} {
		have, err := Parse(map[string]string{DefaultKey: value}, "pods")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, have.Default, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: -want +have\n%s", value, diff)
		}
	}
}

// TestFaults: invalid annotations and the paths of their faults. The reference's tests: "fails to
// parse comma-separated … bad namespace", "… bad interface name", "… trailing @", "… two slashes",
// "… invalid IP", "… invalid MAC", "… invalid InfiniBand GUID", "returns an error if the annotation
// is invalid JSON".
func TestFaults(t *testing.T) {
	const key = "annotation " + NetworksKey
	for _, c := range []struct {
		value string
		want  []string // paths, or paths with a reason
	}{
		{"a@\xff", []string{key + ": is not UTF-8"}},
		{"a,,b", []string{key + "[1]: is empty"}},
		{"a/b/c", []string{key + "[0]: "}},
		{"/a", []string{key + "[0]: "}},
		{"ns/", []string{key + "[0]: "}},
		{"A,b_c,-d,e-,f.g,ü", []string{key + "[0]", key + "[1]", key + "[2]", key + "[3]", key + "[4]", key + "[5]"}},
		{"a@", []string{key + `[0]: "" is not an interface name`}},
		{"a@b@c/d", []string{key + "[0]: "}},
		{"a@eth0/1,b@0123456789abcdef", []string{key + "[0]: ", key + "[1]: "}},
		{"a@net1,b@net1", []string{key + `[1].interface: "net1" is already requested by network "a" (element 0): set another one for network "b", or none`}},
		{strings.Repeat("a", 64), []string{key + "[0]: "}},
		{strings.Repeat("a,", 128) + "a", []string{key + ": requests 129 networks"}},
		{`{"name":"a"}`, []string{key + ": cannot be read: is a JSON object, want list"}},
		{`"a"`, []string{key + ": cannot be read"}},
		{`[{"name":"a"}`, []string{key + ": cannot be read"}},
		{`["a"]`, []string{key + "[0]: must be an object"}},
		{`[null, 1]`, []string{key + "[0]: must be an object", key + "[1]: must be an object"}},
		{`[{}]`, []string{key + "[0].name: is missing"}},
		{`[{"name":""}]`, []string{key + `[0].name: "" is not the name`}},
		{`[{"name":"../a"},{"name":"a/b"},{"name":"a\u0000"},{"name":"a..b"}]`, []string{key + "[0].name", key + "[1].name", key + "[2].name", key + "[3].name"}},
		{`[{"name":1,"namespace":["x"],"interface":"a b"}]`, []string{key + "[0].interface", key + "[0].name: is a JSON number, want string", key + "[0].namespace"}},
		{`[{"name":"a","namespace":"A.b"}]`, []string{key + "[0].namespace"}},
		{`[{"name":"a","ips":"10.0.0.1"}]`, []string{key + "[0].ips: is a JSON string"}},
		{`[{"name":"a","ips":["10.0.0.256","x","10.0.0.1/33","fe80::1%eth0","::ffff:1.2.3.4/96"]}]`, []string{
			key + "[0].ips[0]", key + "[0].ips[1]", key + "[0].ips[2]", key + "[0].ips[3]", key + "[0].ips[4]",
		}},
		{`[{"name":"a","mac":"01:00:00:00:00:01"},{"name":"b","mac":"c2:11:22"}]`, []string{key + "[0].mac", key + "[1].mac"}},
		{`[{"name":"a","infiniband-guid":"24:8a:07:03:00:8d"}]`, []string{key + "[0].infiniband-guid"}},
		{`[{"name":"a","cni-args":"x"}]`, []string{key + "[0].cni-args"}},
		{`[{"name":"a","portMappings":[{"hostPort":0,"containerPort":65536,"protocol":"icmp","hostIP":"x","RANGE":65535}]}]`, []string{
			key + "[0].portMappings[0].hostPort", key + "[0].portMappings[0].containerPort", key + "[0].portMappings[0].protocol", key + "[0].portMappings[0].hostIP", key + "[0].portMappings[0].range",
		}},
		{`[{"name":"a","bandwidth":{"ingressBurst":1,"egressBurst":2}}]`, []string{key + "[0].bandwidth.ingressRate", key + "[0].bandwidth.egressRate"}},
		{`[{"name":"a","bandwidth":{"ingressRate":-1}}]`, []string{key + "[0].bandwidth: "}},
		{`[{"name":"a","default-route":["x"]}]`, []string{key + "[0].default-route[0]"}},
		{`[{"name":"a","default-route":["10.0.0.1","10.0.0.2"]}]`, []string{key + "[0].default-route: 10.0.0.2 is a second gateway"}},
		{`[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["fd00::1","10.0.0.2"]}]`, []string{key + "[1].default-route: 10.0.0.2"}},
		{`[{"name":"a","ips":["10.0.0.1"],"ipam-claim-reference":"c"}]`, []string{key + "[0].ips: cannot be combined with ipam-claim-reference"}},
		{`[{"name":"a","ipam-claim-reference":"C/x"}]`, []string{key + "[0].ipam-claim-reference"}},
		{`[{"name":"a","deviceID":"a\nb"}]`, []string{key + "[0].deviceID"}},
		{`[{"name":"a","ip":"10.0.0.1","gateway":1,".x":1}]`, []string{key + "[0]..x: is not known", key + "[0].gateway: is not known", key + "[0].ip: is not known"}},
		{`[{"name":"a","ips":["10.0.0.1"],"io.github.cnibox":{"ip":"none","mtu":1}}]`, []string{key + "[0].io.github.cnibox.mtu", key + "[0].ips: cannot be combined"}},
		{`[{"name":"a","io.github.cnibox":{"ip":"dynamic","policyRoutes":[{"dst":"x"},{"dst":"10.0.0.0/8","gw":"fd00::1"},{"dst":"::/0","gw":"y"}]}}]`, []string{
			key + "[0].io.github.cnibox.ip", key + "[0].io.github.cnibox.policyRoutes[0].dst", key + "[0].io.github.cnibox.policyRoutes[1].gw", key + "[0].io.github.cnibox.policyRoutes[2].gw",
		}},
		{`[{"name":"a","io.github.cnibox":{"ip":"none","policyRoutes":[{"dst":"::/0"}]}}]`, []string{key + "[0].io.github.cnibox.policyRoutes: cannot be combined"}},
		{`[{"name":"a","io.github.cnibox":true}]`, []string{key + "[0].io.github.cnibox: must be an object"}},
	} {
		_, err := Parse(map[string]string{NetworksKey: c.value}, "pods")
		checkFaults(t, c.value, err, c.want)
	}
	_, err := Parse(map[string]string{NetworksKey: "A", DefaultKey: "a,B"}, "pods")
	checkFaults(t, "both", err, []string{key + "[0]", "annotation " + DefaultKey + "[1]", "annotation " + DefaultKey + ": names 2 networks"})
}

// checkFaults checks that each fault has its own line with the path and a fix.
func checkFaults(t *testing.T, value string, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%.80s: no error", value)
		return
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Errorf("%.80s: %d faults, want %d:\n%v", value, len(lines), len(want), err)
		return
	}
	for i, l := range lines {
		if !strings.HasPrefix(l, want[i]) {
			t.Errorf("%.80s: have %s, want %s…", value, l, want[i])
		}
	}
}

func TestParsePlugins(t *testing.T) {
	have, err := ParsePlugins(" weave, canal@eth1 ,Net_1.2@x")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Plugin{{Name: "weave"}, {"canal", "eth1"}, {"Net_1.2", "x"}}, have); diff != "" {
		t.Error(diff)
	}
	if have, err := ParsePlugins(" "); have != nil || err != nil {
		t.Error(have, err)
	}
	const key = "annotation " + PluginsKey
	for value, want := range map[string][]string{
		"a,,b":     {key + "[1]"},
		"../a,b/c": {key + "[0]", key + "[1]"},
		"a@,b@/":   {key + "[0]", key + "[1]"},
		"a@x,b@x":  {key + "[1]: interface \"x\" is requested twice"},
		"-a":       {key + "[0]"},
	} {
		_, err := ParsePlugins(value)
		checkFaults(t, value, err, want)
	}
}

func TestRequests(t *testing.T) {
	n := Network{
		Namespace: "ns", Name: "a", IfName: "x", IPs: []string{"10.0.0.1"}, MAC: "02:00:00:00:00:01", InfinibandGUID: "24:8a:07:03:00:8d:ae:2f", DeviceID: "d",
		PortMappings: raw(`[ ]`), Bandwidth: raw(`{}`), CNIArgs: raw(`{"a":1}`),
	}
	want := map[string]json.RawMessage{
		"ips": raw(`["10.0.0.1"]`), "mac": raw(`"02:00:00:00:00:01"`), "infinibandGUID": raw(`"24:8a:07:03:00:8d:ae:2f"`), "deviceID": raw(`"d"`),
		"portMappings": raw(`[ ]`), "bandwidth": raw(`{}`),
	}
	if diff := cmp.Diff(want, n.Requests()); diff != "" {
		t.Error(diff)
	}
	if n.String() != "ns/a@x" || (&Network{Name: "a"}).String() != "a" {
		t.Error(n.String())
	}
	if len((&Network{Name: "a"}).Requests()) != 0 {
		t.Error("requests of nothing")
	}
}

// FuzzParse: no input leads to a panic. Accepted names are safe in a path, interface names are
// valid, and the stored form decodes to the same value.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "net-a,ns/net-b@eth1", `[{"name":"a"}]`, `[{"name":"a","ips":["10.0.0.1/8"],"mac":"02:00:00:00:00:01","default-route":["::1"]}]`,
		`[{"name":"a","portMappings":[{"hostPort":1,"containerPort":2}],"bandwidth":{"ingressRate":8},"io.github.cnibox":{"ip":"none"}}]`,
		`[{"name":"a","io.github.cnibox":{"policyRoutes":[{"dst":"::/0","gw":"::1"}]},"cni-args":{"a":[{}]}}]`, `{`, `[`, `"`, "a@b", "@", "/", ",",
	} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, networks, def string) {
		_, _ = ParsePlugins(networks)
		w, err := Parse(map[string]string{NetworksKey: networks, DefaultKey: def}, "pods")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "annotation ") {
				t.Fatalf("%q: %v", networks, err)
			}
			return
		}
		for _, n := range w.Networks {
			if n.Namespace == "" || strings.ContainsAny(n.Namespace+n.Name, "/\x00") || strings.Contains(n.Name, "..") || n.IfName != "" && roles.LinkName(n.IfName) != nil {
				t.Fatalf("%q: accepted %+v", networks, n)
			}
		}
		again := ""
		if len(w.Networks) > 0 {
			kept, err := json.Marshal(w.Networks)
			if err != nil {
				t.Fatal(err)
			}
			again = string(kept)
		}
		once, err := Parse(map[string]string{NetworksKey: again}, "other")
		if err != nil {
			t.Fatalf("%q: kept as %s: %v", networks, again, err)
		}
		if a, b := fmt.Sprint(len(once.Networks)), fmt.Sprint(len(w.Networks)); a != b {
			t.Fatalf("%q: %s networks, then %s", networks, b, a)
		}
		for i := range once.Networks {
			a, _ := json.Marshal(once.Networks[i])
			b, _ := json.Marshal(w.Networks[i])
			if string(a) != string(b) {
				t.Fatalf("%q: %s, then %s", networks, b, a)
			}
		}
	})
}

// TestArgs: the plugins get an IPAMClaim with the other arguments.
func TestArgs(t *testing.T) {
	for _, c := range []struct {
		n    Network
		want string
	}{
		{Network{}, ""},
		{Network{CNIArgs: raw(`{"a": 1}`)}, `{"a": 1}`},
		{Network{IPAMClaim: "vm.lan"}, `{"ipam-claim-reference":"vm.lan"}`},
		{Network{IPAMClaim: "vm.lan", CNIArgs: raw(`{"a": 1e400, "ipam-claim-reference": "x"}`)}, `{"a":1e400,"ipam-claim-reference":"vm.lan"}`},
	} {
		if got := string(c.n.Args()); got != c.want {
			t.Errorf("%+v: %s", c.n, got)
		}
	}
}
