package wish

import (
	"encoding/json"
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

// TestStatus compares the document byte by byte, because other programs and people read it.
func TestStatus(t *testing.T) {
	var def, second roles.Result
	for in, out := range map[string]*roles.Result{
		`{"cniVersion":"1.1.0","interfaces":[{"name":"br0","mac":"02:00:00:00:00:09"},{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1450,"sandbox":"/run/netns/x"},{"name":"other","sandbox":"/run/netns/x"}],
		  "ips":[{"address":"192.0.2.2/24","gateway":"192.0.2.1","interface":1},{"address":"2001:db8::2/64","interface":1},{"address":"192.0.2.9/24","interface":0},{"address":"192.0.2.10/24","interface":2}],
		  "routes":[{"dst":"10.0.0.0/8","gw":"192.0.2.7"},{"dst":"0.0.0.0/0","gw":"192.0.2.1"},{"dst":"::/0","gw":"2001:db8::1"},{"dst":"0.0.0.0/0"}],
		  "dns":{"nameservers":["192.0.2.53"],"domain":"d","search":["s"],"options":["o"]}}`: &def,
		`{"cniVersion":"1.1.0","ips":[{"address":"198.51.100.7/24"}]}`: &second,
	} {
		if err := json.Unmarshal([]byte(in), out); err != nil {
			t.Fatal(err)
		}
	}
	have, err := Status([]Attachment{
		{Name: "cbr0", Default: true, IfName: "eth0", Result: &def},
		{
			Name: "ns/net-b", IfName: "net1", Result: &second, DefaultRoute: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
			DeviceInfo: raw(`{"type":"pci","version":"1.0.0","pci":{"pci-address":"0000:18:02.5"}}`),
		},
		{Name: "ns/none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{
    "name": "cbr0",
    "interface": "eth0",
    "ips": [
        "192.0.2.2",
        "2001:db8::2"
    ],
    "mac": "02:00:00:00:00:01",
    "mtu": 1450,
    "default": true,
    "dns": {
        "nameservers": [
            "192.0.2.53"
        ],
        "domain": "d",
        "search": [
            "s"
        ],
        "options": [
            "o"
        ]
    },
    "gateway": [
        "192.0.2.1",
        "2001:db8::1"
    ]
},{
    "name": "ns/net-b",
    "interface": "net1",
    "ips": [
        "198.51.100.7"
    ],
    "dns": {},
    "device-info": {
        "type": "pci",
        "version": "1.0.0",
        "pci": {
            "pci-address": "0000:18:02.5"
        }
    },
    "default-route": [
        "198.51.100.1"
    ]
},{
    "name": "ns/none",
    "dns": {}
}]`
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("-want +have\n%s", diff)
	}
	if have, err := Status(nil); err != nil || string(have) != "[]" {
		t.Errorf("nothing: %s, %v", have, err)
	}
}

// TestStatusOfOddResults: results that plugins return although the specification does not allow
// them.
func TestStatusOfOddResults(t *testing.T) {
	minusOne := -1
	odd := &roles.Result{
		Interfaces: []*roles.ResultInterface{nil, {Name: "eth0", Sandbox: "/x"}},
		IPs:        []*types100.IPConfig{nil, {}, {Interface: &minusOne, Address: net.IPNet{IP: net.IPv4(10, 0, 0, 1)}}},
		Routes:     []*types.Route{nil, {}, {GW: net.IPv4(10, 0, 0, 1)}},
	}
	have, err := Status([]Attachment{{Name: "a", IfName: "b", Result: odd}, {Name: "b", DeviceInfo: raw(`{`)}})
	if err == nil {
		t.Errorf("device information that is no JSON was taken: %s", have)
	}
	have, err = Status([]Attachment{{Name: "a", IfName: "b", Result: odd}})
	if want := "[{\n    \"name\": \"a\",\n    \"interface\": \"eth0\",\n    \"dns\": {}\n}]"; err != nil || string(have) != want {
		t.Errorf("have %s, %v", have, err)
	}
}
