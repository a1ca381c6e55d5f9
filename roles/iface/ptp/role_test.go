package ptp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	plain = `{"name":"plain","type":"ptp","mtu":1400,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],
		"routes":[{"dst":"0.0.0.0/0"}]}}`
	dual = `{"name":"dual","type":"ptp","ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"192.168.0.0/16","mtu":1300,"priority":50}]}}`
	host = `{"name":"host","type":"ptp","ipMasq":true,"hostAddressing":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","gateway":"169.254.1.1"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`
	// single addresses have their own masquerade entries.
	single = `{"name":"single","type":"ptp","ipMasq":true,"ipam":{"type":"static","addresses":[
		{"address":"10.1.0.2/32","gateway":"169.254.1.1"},{"address":"fd00:1::2/128","gateway":"fe80::1"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`
	egress = `{"name":"egress","type":"ptp","ipMasq":true,"egressAddress":["203.0.113.7","2001:db8:1::7"],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"}]}}`
	layer2 = `{"name":"layer2","type":"ptp"}`
	netkit = `{"name":"netkit","type":"ptp","linkType":"netkit","mtu":1400,"ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`
)

// TestRole runs the suite: the reference's scenarios "ADD/DEL", "masq
// nftables", "dual-stack + routes", "DEL unconfigured", and others that the
// reference lacks. "masq iptables" has the same result and is covered by a
// golden file.
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "ptp",
		Confs: []rolestest.Conf{
			{Name: "plain", Refused: map[string]any{"mtu": -1}, NoSweeps: true, JSON: plain, Tamper: append(append(layer1(), addressGone, gatewayRoute, hostRoute, gatewayAddress, forwarding), rolestest.MTUs(true)...)},
			{Name: "dual", JSON: dual, Tamper: []rolestest.Tamper{masquerade, rules, addressGone}},
			{Name: "host", JSON: host, NoSweeps: true, Tamper: []rolestest.Tamper{masquerade, addressGone, hostRoute}},
			{Name: "single", JSON: single, Tamper: []rolestest.Tamper{masquerade, addressGone}},
			{
				Name: "egress", JSON: egress, Host: egressAddresses, Refused: map[string]any{"egressAddress": "fe80::1"},
				Tamper: []rolestest.Tamper{masquerade, rules},
			},
			{Name: "layer2", NoSweeps: true, JSON: layer2, NoAddress: true, Tamper: layer1()},
			{
				Name: "netkit", JSON: netkit, Needs: needNetkit, Refused: map[string]any{"runtimeConfig": map[string]string{"mac": "02:00:00:00:00:01"}},
				Tamper: append(append(layer0(), masquerade, addressGone, gatewayRoute, hostRoute, gatewayAddress), rolestest.MTUs(true)...),
			},
		},
	}.Run(t)
}

// TestDNS is the reference's scenarios "IPAM DNS kept / overridden / overridden
// by empty list".
func TestDNS(t *testing.T) {
	const conf = `{"cniVersion":"1.1.0","name":"dns","type":"ptp","ipam":{"type":"static",
		"addresses":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"dns":{"nameservers":["10.1.0.53"],"search":["a.example"]}}}`
	for name, c := range map[string]struct{ dns, want string }{
		"kept":                     {`{}`, `{"nameservers":["10.1.0.53"],"search":["a.example"]}`},
		"overridden":               {`{"domain":"b.example"}`, `{"domain":"b.example"}`},
		"overridden by empty list": {`{"nameservers":[]}`, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := rolestest.NewEnv(t, all.Table())
			call := rolestest.Call{
				Type: "ptp", Verb: "ADD", ID: "c1", Netns: netopstest.New(t).Path(), IfName: "eth0",
				Conf: rolestest.WithKeys(t, conf, map[string]any{"dns": json.RawMessage(c.dns)}),
			}
			var r struct{ DNS json.RawMessage }
			must(t, json.Unmarshal([]byte(e.OK(call).Stdout), &r))
			if r.DNS == nil {
				r.DNS = []byte(`{}`)
			}
			rolestest.SameJSON(t, string(r.DNS), c.want)
			call.Verb = "DEL"
			e.OK(call)
		})
	}
}

// TestStorm: 60 containers, 16 at a time, with plugins that are killed at
// random.
func TestStorm(t *testing.T) {
	rolestest.Storm{
		Table: all.Table(), Type: "ptp", Containers: 60, Parallel: 16,
		Confs: []string{rolestest.WithKeys(t, dual, map[string]any{"cniVersion": "1.1.0"})},
	}.Run(t)
}

// egressAddresses gives the node the addresses of egressAddress.
func egressAddresses(t testing.TB) {
	t.Helper()
	netopstest.LocalAddress(t, "203.0.113.7/32")
	netopstest.LocalAddress(t, "2001:db8:1::7/128")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needNetkit(t testing.TB) { netopstest.NeedKind(t, "netkit") }

// layer1 are changes of the links, and layer0 those of links without MACs.
func layer1() []rolestest.Tamper {
	return append(layer0(), rolestest.Inside("MAC changed", netopstest.OtherMAC))
}

func layer0() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("container link down", netlink.LinkSetDown),
		rolestest.Inside("container link gone", netlink.LinkDel),
		rolestest.Outside("host link down", netlink.LinkSetDown),
	}
}

var (
	addressGone  = rolestest.Inside("address gone", netopstest.DropAddress)
	gatewayRoute = rolestest.Inside("route to the gateway gone", func(l netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet([]byte{10, 1, 0, 1}), Scope: netlink.SCOPE_LINK})
	})
	hostRoute      = rolestest.Outside("host's route gone", netopstest.DropRoute)
	gatewayAddress = rolestest.Outside("gateway's address gone", netopstest.DropAddress)
	forwarding     = rolestest.OnHost("forwarding off", netopstest.StopForwarding)
	masquerade     = rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset)
	rules          = rolestest.OnHost("rules flushed", netopstest.FlushRules)
)

// pod is a container of a test.
type pod struct {
	*netopstest.NS
	call rolestest.Call
	// hostLink and addrs are values of ADD's result.
	hostLink string
	addrs    []string
	result   string
}

// attach creates a container with one attachment.
func attach(t *testing.T, e *rolestest.Env, conf, id string) *pod {
	t.Helper()
	ns := netopstest.New(t)
	p := &pod{NS: ns, call: rolestest.Call{
		Type: "ptp", Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}}
	var r roles.Result
	p.result = e.OK(p.call).Stdout
	must(t, json.Unmarshal([]byte(p.result), &r))
	p.hostLink = r.Interfaces[0].Name
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.IP.String())
	}
	t.Cleanup(func() { p.detach(e) })
	return p
}

// detach runs DEL.
func (p *pod) detach(e *rolestest.Env) {
	p.call.Verb = "DEL"
	e.OK(p.call)
}

// collect runs GC without valid attachments.
func collect(t *testing.T, e *rolestest.Env, conf string) {
	t.Helper()
	e.OK(rolestest.Call{Type: "ptp", Verb: "GC", Conf: rolestest.WithKeys(t, conf, map[string]any{
		"cniVersion": "1.1.0", "cni.dev/valid-attachments": []string{},
	})})
}

// TestMasqueradeIsOneEntry: attachments share the network's entry. No DEL
// changes it, not even one without CNI_NETNS, and GC removes it with the last
// attachment. Upstream leaks a chain for each container there
// (containernetworking/plugins#810).
func TestMasqueradeIsOneEntry(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	pristine := e.State([]string{"sysctl net/"})
	t.Run("attached", func(t *testing.T) {
		attach(t, e, dual, "a")
		b := attach(t, e, dual, "b")
		b.call.Netns = ""
		entries := 0
		for line := range strings.Lines(e.State(nil)) {
			if strings.Contains(line, "set masq_kind4 element") {
				entries++
			}
		}
		if entries != 1 {
			t.Errorf("%d entries for two containers, want 1", entries)
		}
	})
	collect(t, e, dual)
	if have := e.State([]string{"sysctl net/"}); have != pristine {
		t.Errorf("after DEL and GC:\n%s\nbefore:\n%s", have, pristine)
	}
}

// TestStateLost: /run/cnibox is deleted, and with it the record of the
// masquerade entry. GC removes the entry nevertheless.
func TestStateLost(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	modulo := []string{"sysctl net/"}
	pristine := e.State(modulo)
	t.Run("attached", func(t *testing.T) { attach(t, e, dual, "a") })
	if e.State(modulo) == pristine {
		t.Fatal("there is nothing for GC to remove")
	}
	found, err := filepath.Glob(filepath.Join(e.RunDir(), "*"))
	must(t, err)
	for _, f := range found {
		must(t, os.RemoveAll(f))
	}
	collect(t, e, dual)
	if have := e.State(modulo); have != pristine {
		t.Errorf("after GC:\n%s\nbefore:\n%s", have, pristine)
	}
}

// TestNoGateway: ADD fails if IPAM gives no gateway, and leaves nothing.
func TestNoGateway(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	script := "#!/bin/sh\ncat >/dev/null\n" +
		`[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}'` + "\n" +
		"echo $CNI_COMMAND >>" + e.Dir() + "/asked\n"
	must(t, os.WriteFile(filepath.Join(e.PluginDir(), "other-ipam"), []byte(script), 0o700))
	ns := netopstest.New(t)
	pristine := e.State(nil, ns)
	a := e.Fail(rolestest.Call{
		Type: "ptp", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0",
		Conf: `{"cniVersion":"1.1.0","name":"n","type":"ptp","ipMasq":true,"ipam":{"type":"other-ipam"}}`,
	}, 7)
	if !strings.Contains(a.Stdout, "ipam: gave 10.1.0.2/24 without a gateway") {
		t.Errorf("the error does not contain the cause: %s", a.Stdout)
	}
	if have := e.State(nil, ns); have != pristine {
		t.Errorf("after a failed ADD:\n%s\nbefore:\n%s", have, pristine)
	}
	asked, err := os.ReadFile(e.Dir() + "/asked")
	if err != nil || string(asked) != "ADD\nDEL\n" {
		t.Errorf("IPAM was called with %q, %v: want ADD and DEL", asked, err)
	}
}
