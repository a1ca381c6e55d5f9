package ptp_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestNetkitAbsent: on a kernel without netkit ADD and STATUS fail with an error that names
// the key, and ADD leaves nothing.
func TestNetkitAbsent(t *testing.T) {
	n := netops.New(netops.Options{})
	defer n.Close()
	if n.HasKind(t.Context(), "netkit") == nil {
		t.Skip("this kernel has netkit; the machine that make test runs on has not")
	}
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	before := e.State(nil, ns)
	conf := rolestest.WithKeys(t, netkit, map[string]any{"cniVersion": "1.1.0"})
	for verb, code := range map[string]int{"ADD": 7, "STATUS": 50} {
		call := rolestest.Call{Type: "ptp", Verb: verb, Conf: conf}
		if verb == "ADD" {
			call.ID, call.Netns, call.IfName = "c1", ns.Path(), "eth0"
		}
		a := e.Fail(call, code)
		if !strings.Contains(a.Stdout, "linkType: ") || !strings.Contains(a.Stdout, "Linux 6.7") {
			t.Errorf("%s: the error does not name the key and the kernel: %s", verb, a.Stdout)
		}
	}
	if have := e.State(nil, ns); have != before {
		t.Errorf("after a failed ADD:\n%s\nbefore:\n%s", have, before)
	}
}

// TestNetkitChained: chained plugins work behind a netkit pair, and after DEL nothing of them
// is left.
func TestNetkitChained(t *testing.T) {
	needNetkit(t)
	e := rolestest.NewEnv(t, all.Table())
	t.Cleanup(func() { collect(t, e, netkit) })
	p := attach(t, e, netkit, "a")
	for typ, conf := range map[string]string{
		"bandwidth": `{"ingressRate":8000000,"ingressBurst":8000000,"egressRate":8000000,"egressBurst":8000000}`,
		"firewall":  `{}`,
		"portmap":   `{"snat":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}}`,
		"sbr":       `{}`,
		"tuning":    `{"mtu":1300,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}`,
		"vrf":       `{"vrfname":"blue"}`,
	} {
		t.Run(typ, func(t *testing.T) {
			call := p.call
			call.Type = typ
			keys := map[string]any{"cniVersion": "1.1.0", "name": "netkit", "type": typ, "prevResult": json.RawMessage(p.result)}
			call.Conf = rolestest.WithKeys(t, conf, keys)
			result := e.OK(call).Stdout
			call.Verb, call.Conf = "CHECK", rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0", "name": "netkit", "type": typ, "prevResult": json.RawMessage(result)})
			e.OK(call)
			if typ == "portmap" {
				netopstest.CheckDatagramVia(t, "host port", nil, "10.1.0.1:8080", netopstest.Listen(t, p, p.addrs[0]+":80"), "10.1.0.1")
			}
			call.Verb = "DEL"
			e.OK(call)
			call.Type, call.Verb, call.Conf = "ptp", "CHECK", rolestest.WithKeys(t, netkit, map[string]any{"cniVersion": "1.1.0", "prevResult": json.RawMessage(p.result)})
			e.OK(call)
		})
	}
}

// TestNetkitMAC: the interfaces of a netkit pair have no MAC in the result, and neither
// CNI_ARGS nor the type tuning can give them one. The error names the key.
func TestNetkitMAC(t *testing.T) {
	needNetkit(t)
	e := rolestest.NewEnv(t, all.Table())
	t.Cleanup(func() { collect(t, e, netkit) })
	p := attach(t, e, netkit, "a")
	var r roles.Result
	must(t, json.Unmarshal([]byte(p.result), &r))
	for _, i := range r.Interfaces {
		if i.Mac != "" {
			t.Errorf("%s has the MAC %q in the result", i.Name, i.Mac)
		}
	}
	tuned := p.call
	tuned.Type = "tuning"
	for path, conf := range map[string]map[string]any{
		"mac":               {"mac": "02:00:00:00:00:01"},
		"runtimeConfig.mac": {"runtimeConfig": map[string]any{"mac": "02:00:00:00:00:01"}},
		"args.cni.mac":      {"args": map[string]any{"cni": map[string]any{"mac": "02:00:00:00:00:01"}}},
	} {
		conf["prevResult"] = json.RawMessage(p.result)
		tuned.Conf = rolestest.WithKeys(t, `{"cniVersion":"1.1.0","name":"netkit","type":"tuning"}`, conf)
		if a := e.Fail(tuned, 7); !strings.Contains(a.Stdout, `"tuning: `+path+": ") {
			t.Errorf("the error does not name %s: %s", path, a.Stdout)
		}
	}
	other := p.call
	other.ID, other.Args = "b", "MAC=02:00:00:00:00:01"
	for _, call := range []rolestest.Call{tuned, other} {
		call.Args = "MAC=02:00:00:00:00:01"
		if call.Type == "tuning" {
			call.Conf = rolestest.WithKeys(t, `{"cniVersion":"1.1.0","name":"netkit","type":"tuning"}`, map[string]any{"prevResult": json.RawMessage(p.result)})
		}
		if a := e.Fail(call, 4); !strings.Contains(a.Stdout, "CNI_ARGS: MAC") {
			t.Errorf("%s: the error does not name the argument: %s", call.Type, a.Stdout)
		}
	}
}
