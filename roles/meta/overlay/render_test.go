package overlay

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// dualNode is a node of both families whose agent masquerades.
func dualNode() *store.Overlay {
	return &store.Overlay{
		Ready: true, IPMasq: true, MTU: 1430,
		IPv4: &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Subnet: netip.MustParsePrefix("10.244.1.0/24"), MTU: 1450},
		IPv6: &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("fd00:244::/48")}, Subnet: netip.MustParsePrefix("fd00:244:0:1::/64"), MTU: 1430},
	}
}

// exceptingNode is a dualNode with a network that its agent does not masquerade.
func exceptingNode() *store.Overlay {
	n := dualNode()
	n.IPMasqExcept = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	return n
}

// TestRender checks the delegate's configuration key by key against the flannel plugin's.
func TestRender(t *testing.T) {
	single := dualNode()
	single.IPv6, single.IPMasq, single.MTU = nil, false, 1450
	for _, c := range []struct {
		name, conf, want string
		node             *store.Overlay
		former           []netip.Prefix
	}{
		{
			name: "as shipped", node: dualNode(),
			conf: `{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`,
			want: `{"cniVersion":"0.3.1","forceAddress":true,"forceAddressIn":["10.244.0.0/16","fd00:244::/48"],"hairpinMode":true,"ipMasq":false,
				"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:244:0:1::/64"}]],
					"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:244::/48"}],"type":"host-local"},
				"isDefaultGateway":true,"isGateway":true,"mtu":1430,"name":"cbr0","type":"bridge"}`,
		},
		{
			name: "the bridge masquerades, former subnets", node: single,
			former: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("10.99.7.0/24")},
			conf:   `{"cniVersion":"1.0.0","name":"n","type":"vxlan"}`,
			want: `{"cniVersion":"1.0.0","forceAddress":true,"forceAddressIn":["10.244.0.0/16","10.99.7.0/24"],"ipMasq":true,
				"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},
				"isGateway":true,"mtu":1450,"name":"n","type":"bridge"}`,
		},
		{
			name: "egressAddress where the agent masquerades", node: exceptingNode(),
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","delegate":{"egressAddress":"203.0.113.7","egressExcept":["192.0.2.0/24"]}}`,
			want: `{"cniVersion":"1.0.0","egressAddress":"203.0.113.7","egressExcept":["192.0.2.0/24","10.244.0.0/16","fd00:244::/48","198.51.100.0/24"],
				"forceAddress":true,"forceAddressIn":["10.244.0.0/16","fd00:244::/48"],"ipMasq":false,
				"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:244:0:1::/64"}]],
					"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:244::/48"}],"type":"host-local"},
				"isGateway":true,"mtu":1430,"name":"n","type":"bridge"}`,
		},
		{
			name: "egressAddress where nobody masquerades", node: single,
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","delegate":{"type":"ptp","ipMasq":false,"egressAddress":"203.0.113.7"}}`,
			want: `{"cniVersion":"1.0.0","egressAddress":"203.0.113.7","ipMasq":false,
				"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},
				"mtu":1450,"name":"n","type":"ptp"}`,
		},
		{
			name: "egressAddress without the node's networks",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","delegate":{"type":"ptp","egressAddress":"203.0.113.7","egressExcept":["192.0.2.0/24"]}}`,
			want: `{"cniVersion":"1.0.0","ipam":{"type":"host-local"},"name":"n","type":"ptp"}`,
		},
		{
			name: "given keys win but for ranges", node: single,
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","dns":{"nameservers":["192.0.2.1"]},"args":{"cni":{"ips":["10.244.1.9"]}},
				"runtimeConfig":{"mac":"02:00:00:00:00:01"},"prevResult":{"cniVersion":"1.0.0"},"unknown":1,
				"delegate":{"ipMasq":false,"mtu":1300,"isGateway":false,"forceAddress":false,"bridge":"br7","vlan":5},
				"ipam":{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"192.168.0.0/24"}]],"routes":[{"dst":"192.0.2.0/24","gw":"10.244.1.200"}]}}`,
			want: `{"args":{"cni":{"ips":["10.244.1.9"]}},"bridge":"br7","cniVersion":"1.0.0","dns":{"nameservers":["192.0.2.1"]},"forceAddress":false,"ipMasq":false,
				"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"192.0.2.0/24","gw":"10.244.1.200"},{"dst":"10.244.0.0/16"}],"type":"host-local"},
				"isGateway":false,"mtu":1300,"name":"n","prevResult":{"cniVersion":"1.0.0"},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"bridge","vlan":5}`,
		},
		{
			name: "another delegate", node: single,
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","delegate":{"type":"ptp"}}`,
			want: `{"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},
				"mtu":1450,"name":"n","type":"ptp"}`,
		},
		{
			name: "DEL before the agent has started",
			conf: `{"cniVersion":"1.0.0","name":"n","type":"vxlan","ipam":{"dataDir":"/d"}}`,
			want: `{"cniVersion":"1.0.0","forceAddress":true,"ipam":{"dataDir":"/d","type":"host-local"},"isGateway":true,"name":"n","type":"bridge"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := decode([]byte(c.conf))
			if err == nil {
				err = conf.Validate()
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := conf.render([]byte(c.conf), c.node, c.former)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(indented(t, []byte(c.want)), indented(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func indented(t *testing.T, raw []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", " "); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return b.String()
}

// TestFaults: all faults of a configuration are reported with their paths.
func TestFaults(t *testing.T) {
	_, err := Role().New([]byte(`{"name":"n","type":"vxlan","overlayFile":"o.json","subnetFile":"/s","dataDir":"d",
		"delegate":{"name":"x","ipam":{},"type":7},"ipam":{"routes":{}}}`))
	want := `overlayFile: "o.json" is not an absolute path
dataDir: "d" is not an absolute path
subnetFile: cannot be combined with overlayFile: remove one of them
delegate.name: is not accepted: put it beside delegate, at the top level
delegate.ipam: is not accepted: put it beside delegate, at the top level
delegate.type: 7 is not the name of a plugin
ipam.routes: is not a list`
	if err == nil || !errors.Is(err, roles.ErrConf) || err.Error() != want {
		t.Errorf("have\n%v\nwant\n%s", err, want)
	}
	if _, err := Role().New([]byte(`{"name":"n","type":"vxlan","delegate":[]}`)); err == nil || !errors.Is(err, roles.ErrConf) {
		t.Errorf("delegate as a list: %v", err)
	}
}

// TestSubnetFile: flanneld's file in valid and invalid forms.
func TestSubnetFile(t *testing.T) {
	const v4 = "FLANNEL_NETWORK=10.42.0.0/16,10.42.0.0/16,10.43.0.0/16\nFLANNEL_SUBNET=10.42.3.1/24\n"
	const v6 = "FLANNEL_IPV6_NETWORK=2001:db8::/56\nFLANNEL_IPV6_SUBNET=2001:db8:0:1::1/64\n"
	const rest = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	four := &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")}, Subnet: netip.MustParsePrefix("10.42.3.0/24")}
	six := &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8::/56")}, Subnet: netip.MustParsePrefix("2001:db8:0:1::/64")}
	for _, c := range []struct {
		text string
		want *store.Overlay
	}{
		{text: v4 + rest, want: &store.Overlay{Ready: true, IPMasq: true, MTU: 1450, IPv4: four}},
		{text: "# a comment\n\n" + v4 + v6 + rest, want: &store.Overlay{Ready: true, IPMasq: true, MTU: 1450, IPv4: four, IPv6: six}},
		{text: v6 + "FLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n", want: &store.Overlay{Ready: true, MTU: 1430, IPv6: six}},
		{text: ""},
		{text: rest},
		{text: v4},
		{text: v4 + "FLANNEL_MTU=0\nFLANNEL_IPMASQ=true\n"},
		{text: v4 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=perhaps\n"},
		{text: "FLANNEL_NETWORK=10.42.0.0/16\n" + rest},
		{text: "FLANNEL_SUBNET=10.42.0.1/24\n" + rest},
		{text: "FLANNEL_NETWORK=2001:db8::/56\nFLANNEL_SUBNET=10.42.0.1/24\n" + rest},
	} {
		got, err := parseSubnetFile([]byte(c.text))
		if c.want == nil {
			if err == nil || !errors.Is(err, roles.ErrDecode) {
				t.Errorf("%q: %v, want ErrDecode", c.text, err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", c.text, err, diff)
		}
	}
}

func FuzzSubnetFile(f *testing.F) {
	f.Add([]byte("FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := parseSubnetFile(raw)
		if err == nil && (o.MTU <= 0 || o.IPv4 == nil && o.IPv6 == nil) {
			t.Errorf("%q: %+v", raw, o)
		}
	})
}

func FuzzRender(f *testing.F) {
	f.Add([]byte(`{"name":"n","type":"vxlan","delegate":{"type":"bridge"},"ipam":{"routes":[{}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := decode(raw)
		if err != nil || c.Validate() != nil {
			return
		}
		if out, err := c.render(raw, dualNode(), nil); err != nil || !json.Valid(out) {
			t.Errorf("%s: %v", out, err)
		}
	})
}

// TestReadNode checks the errors before the agent is ready.
func TestReadNode(t *testing.T) {
	dir := t.TempDir()
	boot := "11111111-1111-4111-8111-111111111111"
	h := &roles.Host{Store: store.New(store.Options{RunDir: dir, StateDir: dir, BootID: boot})}
	ready := dualNode()
	ready.BootID, ready.Time = boot, time.Unix(0, 0).UTC()
	old, waiting, empty := *ready, *ready, *ready
	old.BootID = "22222222-2222-4222-8222-222222222222"
	waiting.Ready, waiting.Reason = false, "no pod network assigned"
	empty.IPv4, empty.IPv6 = nil, nil
	for _, c := range []struct {
		name string
		file *store.Overlay
		want error
	}{
		{name: "absent", want: roles.ErrTryAgain},
		{name: "of the last boot", file: &old, want: roles.ErrTryAgain},
		{name: "not ready", file: &waiting, want: roles.ErrTryAgain},
		{name: "empty", file: &empty, want: roles.ErrTryAgain},
		{name: "ready", file: ready},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file != nil {
				if err := store.WriteOverlay(h.Store.OverlayPath(), c.file); err != nil {
					t.Fatal(err)
				}
			}
			o, err := (&Conf{}).readNode(h)
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if c.want == nil && o.MTU != ready.MTU {
				t.Errorf("%+v", o)
			}
		})
	}
	for text, want := range map[string]error{`{"schema":1`: store.ErrInvalid, `{"schema":9}`: store.ErrSchema} {
		if err := os.WriteFile(filepath.Join(dir, "o.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&Conf{OverlayFile: filepath.Join(dir, "o.json")}).readNode(h); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}
