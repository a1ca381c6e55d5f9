package chain_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"capabilities":{"ips":true},
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	portmap  = `{"type":"portmap","capabilities":{"portMappings":true}}`
	firewall = `{"type":"firewall","ingressPolicy":"same-bridge"}`
	tuning   = `{"type":"tuning","mtu":1400,"sysctl":{"net.core.somaxconn":"500"}}`
)

// fused returns a fused list of these plugins, as cnibox fuse writes it.
func fused(plugins ...string) string {
	return `{"name":"fused","type":"chain","capabilities":{"portMappings":true,"ips":true},
		"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
		"plugins":[` + strings.Join(plugins, ",") + `]}`
}

// otherPorts are the port mappings of a second container.
var otherPorts = map[string]any{"portMappings": []map[string]any{{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}}}

// TestRole runs the suite with the list that podman and nerdctl write, and with another
// interface plugin.
func TestRole(t *testing.T) {
	list, ptp := fused(bridge, portmap, firewall, tuning), fused(strings.Replace(strings.Replace(bridge, `"bridge","bridge":"br0","isDefaultGateway":true`, `"ptp"`, 1), `"ipMasq":true`, `"ipMasq":false`, 1), portmap)
	other := func(conf string) string {
		return rolestest.WithKeys(t, conf, map[string]any{"runtimeConfig": otherPorts})
	}
	tamper := []rolestest.Tamper{
		rolestest.Inside("MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1350) }),
		rolestest.Inside("link down", netlink.LinkSetDown),
		rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset),
	}
	rolestest.Suite{Table: all.Table(), Type: "chain", Confs: []rolestest.Conf{
		{Name: "list", JSON: list, Other: other(list), Tamper: tamper, Refused: map[string]any{"capabilities": map[string]bool{}}},
		{Name: "ptp", JSON: ptp, Other: other(ptp), NoSweeps: true, Tamper: tamper[1:]},
	}}.Run(t)
}

// TestStorm attaches many containers at once, with plugins that are killed at random.
func TestStorm(t *testing.T) {
	conf := rolestest.WithKeys(t, fused(bridge, portmap, firewall, tuning), map[string]any{"cniVersion": "1.1.0", "name": "storm", "runtimeConfig": map[string]any{}})
	rolestest.Storm{Table: all.Table(), Type: "chain", Containers: 200, Parallel: 16, Confs: []string{conf}}.Run(t)
}

// TestRefused: an invalid configuration is refused with the JSON paths of all faults.
func TestRefused(t *testing.T) {
	role, _ := all.Table().Lookup("chain")
	for _, c := range []struct{ name, conf, faults string }{
		{"sound", fused(bridge, portmap), ""},
		{"nested", fused(bridge, `{"type":"chain","plugins":[{"type":"tuning"}]}`), "plugins[1].type:"},
		{"nested twice", fused(`{"type":"chain","plugins":[{"type":"chain","plugins":[{"type":"tuning"}]}]}`), "plugins[0].type: plugins[0].plugins[0].type:"},
		{"no type", fused(bridge, `{}`), "plugins[1].type:"},
		{"no plugins", `{"name":"n","type":"chain"}`, "plugins:"},
		{"plugins null", `{"name":"n","type":"chain","plugins":null}`, "plugins:"},
		{"args", `{"name":"n","type":"chain","args":{"cni":[1]},"plugins":[{"type":"bridge"}]}`, "args.cni:"},
		{"args null", `{"name":"n","type":"chain","args":{"cni":null},"plugins":[{"type":"bridge"}]}`, ""},
		{"wrong types", `{"name":"n","type":"chain","plugins":7,"capabilities":"x"}`, "plugins: capabilities:"},
		{"wrong type of one", fused(bridge, `7`), "plugins[1]:"},
		{"capability", `{"name":"n","type":"chain","capabilities":{"ips":true,"portMappings":false},"plugins":[` + bridge + "," + portmap + `]}`, "capabilities.portMappings: plugins[1]"},
		{"ipam", `{"name":"n","type":"chain","ipam":{"type":"static"},"plugins":[{"type":"bridge"}]}`, "ipam:"},
		{"switch", `{"name":"n","type":"chain","disableCheck":7,"plugins":[{"type":"bridge"}]}`, "disableCheck:"},
	} {
		_, err := role.New([]byte(c.conf))
		if (err == nil) != (c.faults == "") {
			t.Errorf("%s: %v", c.name, err)
		}
		for want := range strings.FieldsSeq(c.faults) {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", c.name, err, want)
			}
		}
	}
}

// TestMissingPlugins: a fused list without plugins does not call itself.
func TestMissingPlugins(t *testing.T) {
	role, _ := all.Table().Lookup("chain")
	_, err := role.New([]byte(`{"name":"n","type":"chain"}`))
	if want := "plugins: is missing: name at least one plugin"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestForeignResult: a runtime gets the same document from a third-party plugin at the end of
// a fused list as from that plugin itself, with keys that cnibox does not know.
func TestForeignResult(t *testing.T) {
	for _, version := range []string{"0.3.1", "1.0.0", "1.1.0"} {
		for name, own := range map[string]string{"version": fmt.Sprintf(`"cniVersion":%q,`, version), "no version": ""} {
			t.Run(version+" "+name, func(t *testing.T) {
				e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
				document := `{` + own + `"interfaces":[{"name":"eth0","sandbox":"/ns","vendor":[1]}],"ips":[{"version":"4","address":"10.1.0.2/24","interface":0}],"vendor.example/key":{"b":1,"a":12345678901234567890}}`
				script := "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND != ADD ] || echo '" + document + "'\n"
				if err := os.WriteFile(filepath.Join(e.PluginDir(), "foreign"), []byte(script), 0o700); err != nil {
					t.Fatal(err)
				}
				call := rolestest.Call{Type: "chain", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0"}
				conf := func(list string) string {
					return rolestest.WithKeys(t, list, map[string]any{"cniVersion": version, "name": "fused"})
				}
				call.Conf = conf(fused(`{"type":"bridge"}`, `{"type":"foreign"}`))
				want := rolestest.WithKeys(t, document, map[string]any{"cniVersion": version})
				rolestest.SameJSON(t, e.OK(call).Stdout, want)
				call.Verb = "DEL"
				e.OK(call)
				call.Verb, call.Conf = "ADD", conf(fused(`{"type":"bridge"}`, `{"type":"foreign"}`, `{"type":"tuning"}`))
				if out := e.OK(call).Stdout; strings.Contains(out, "vendor") {
					t.Errorf("the result of tuning has keys of a plugin before it: %s", out)
				}
				call.Verb = "DEL"
				e.OK(call)
			})
		}
	}
}

// TestArgs: DEL works although args.cni is not an object. ADD refuses it.
func TestArgs(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	conf := rolestest.WithKeys(t, fused(bridge, portmap), keys("ADD", ""))
	wrong := rolestest.WithKeys(t, conf, map[string]any{"args": json.RawMessage(`{"cni":[1]}`)})
	call := rolestest.Call{Type: "chain", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: wrong}
	e.Fail(call, 7)
	call.Conf = rolestest.WithKeys(t, conf, map[string]any{"args": json.RawMessage(`{"cni":null}`)})
	e.OK(call)
	call.Verb, call.Conf = "DEL", wrong
	e.OK(call)
	call.Verb, call.Conf = "ADD", conf // it fails if DEL did not remove the attachment
	e.OK(call)
	call.Verb = "DEL"
	e.OK(call)
}

// FuzzConf: no configuration makes the role panic.
func FuzzConf(f *testing.F) {
	role, _ := all.Table().Lookup("chain")
	for _, seed := range []string{fused(bridge, portmap, firewall, tuning), fused(`{"type":"chain","plugins":[{}]}`), `{"plugins":[7]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, conf []byte) {
		if json.Valid(conf) {
			_, _ = role.New(conf)
			_, _ = role.Undo(conf)
		}
	})
}
