package chain_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// form makes a runtime's calls of a list: of each plugin, or of the fused list.
type form func(t *testing.T, e *rolestest.Env, verb string, c rolestest.Call, prev string) string

// keys returns the keys that a runtime adds to each configuration.
func keys(verb, prev string) map[string]any {
	m := map[string]any{"cniVersion": "1.1.0", "name": "fused"}
	if prev != "" {
		m["prevResult"] = json.RawMessage(prev)
	}
	if verb == "GC" {
		m["cni.dev/valid-attachments"] = []any{}
	}
	return m
}

func asFused(t *testing.T, e *rolestest.Env, verb string, c rolestest.Call, prev string) string {
	t.Helper()
	c.Type, c.Verb, c.Conf = "chain", verb, rolestest.WithKeys(t, fused(bridge, portmap, firewall, tuning), keys(verb, prev))
	return e.OK(c).Stdout
}

func asList(t *testing.T, e *rolestest.Env, verb string, c rolestest.Call, prev string) string {
	t.Helper()
	plugins := []string{bridge, strings.Replace(portmap, "{", `{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},`, 1), firewall, tuning}
	if verb == "DEL" {
		slices.Reverse(plugins)
	}
	for _, p := range plugins {
		var conf struct{ Type string }
		if err := json.Unmarshal([]byte(p), &conf); err != nil {
			t.Fatal(err)
		}
		c.Type, c.Verb, c.Conf = conf.Type, verb, rolestest.WithKeys(t, p, keys(verb, prev))
		if out := e.OK(c).Stdout; verb == "ADD" {
			prev = out
		}
	}
	return prev
}

// bridgeMAC matches a bridge's MAC in a result. The kernel chooses it.
var bridgeMAC = regexp.MustCompile(`("name": "br0",\s*"mac": )"[0-9a-f:]+"`)

// TestForms: an attachment by one form of a list is checked, deleted and collected by the
// other form, with the node's state or, from the runtime's cache, without it. Both forms
// make the same objects and records.
func TestForms(t *testing.T) {
	state := func(e *rolestest.Env, ns *netopstest.NS) string { return e.State([]string{"sysctl net/"}, ns) }
	attached := map[string]string{}
	for _, c := range []struct {
		name      string
		made, end form
		lost      bool
	}{
		{"fused, then the list", asFused, asList, false},
		{"the list, then fused", asList, asFused, false},
		{"fused, state lost, then the list", asFused, asList, true},
		{"the list, state lost, then fused", asList, asFused, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
			call := rolestest.Call{ID: "c1", Netns: ns.Path(), IfName: "eth0"}
			pristine := state(e, ns)
			result := c.made(t, e, "ADD", call, "")
			attached[c.name] = bridgeMAC.ReplaceAllString(strings.ReplaceAll(result, ns.Path(), ""), "$1")
			if c.lost {
				add := call
				add.Conf = rolestest.WithKeys(t, fused(bridge, portmap, firewall, tuning), keys("ADD", ""))
				e.Cache(add, result)
				e.Forget()
			}
			c.end(t, e, "CHECK", call, result)
			c.end(t, e, "DEL", call, result)
			c.end(t, e, "GC", rolestest.Call{}, "")
			if have := state(e, ns); have != pristine {
				t.Errorf("state differs\nwant:\n%s\nhave:\n%s", pristine, have)
			}
		})
	}
	if a, b := attached["fused, then the list"], attached["the list, then fused"]; a != b {
		t.Errorf("fused ADD answers %s, the list %s", a, b)
	}
}

// TestRebuiltPool: lost state is rebuilt with the pool of the fused list's first plugin,
// so that the address is not assigned again.
func TestRebuiltPool(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	first := strings.Replace(bridge, `"host-local",`, `"host-local","dataDir":"`+t.TempDir()+`",`, 1)
	conf := rolestest.WithKeys(t, fused(first, tuning), keys("ADD", ""))
	call := rolestest.Call{Type: "chain", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: conf}
	t.Cleanup(func() {
		e.Run(rolestest.Call{Type: "chain", Verb: "GC", Conf: rolestest.WithKeys(t, conf, keys("GC", ""))})
	})
	a := e.OK(call)
	cached := call // libcni caches the whole list
	cached.Conf = rolestest.WithKeys(t, `{"plugins":[`+fused(first, tuning)+`]}`, keys("ADD", ""))
	e.Cache(cached, a.Stdout)
	e.Forget()
	second := call
	second.ID, second.Netns = "c2", netopstest.New(t).Path()
	if b := e.OK(second); !strings.Contains(a.Stdout, "10.1.0.2/24") || !strings.Contains(b.Stdout, "10.1.0.3/24") {
		t.Errorf("first %s, second %s", a.Stdout, b.Stdout)
	}
}

// thirdparty is an executed plugin. It records each call, fails if a file requests it,
// and returns prevResult from ADD.
const thirdparty = `#!/bin/sh
conf=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS $conf" >> "%[1]s/calls"
if [ -e "%[1]s/fail-$CNI_COMMAND" ]; then
	echo '{"cniVersion":"1.1.0","code":11,"msg":"told to fail"}'
	exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then echo "$conf" | sed 's/.*"prevResult":\({.*}\),"name".*/\1/'; fi
`

// TestThirdParty: a third-party plugin is executed with the same input as by a runtime.
// If it fails, the previous plugins are undone.
func TestThirdParty(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	if err := os.WriteFile(filepath.Join(e.PluginDir(), "thirdparty"), fmt.Appendf(nil, thirdparty, e.Dir()), 0o700); err != nil {
		t.Fatal(err)
	}
	calls := func() string {
		b, _ := os.ReadFile(filepath.Join(e.Dir(), "calls"))
		_ = os.Remove(filepath.Join(e.Dir(), "calls"))
		return string(b)
	}
	conf := fused(bridge, `{"type":"thirdparty","capabilities":{"portMappings":true}}`, tuning)
	call := func(verb, prev string) rolestest.Call {
		return rolestest.Call{Type: "chain", Verb: verb, ID: "c1", Netns: ns.Path(), IfName: "eth0", Args: "IgnoreUnknown=1;A=b", Conf: rolestest.WithKeys(t, conf, keys(verb, prev))}
	}
	gc := call("GC", "")
	gc.ID, gc.Netns, gc.IfName = "", "", ""
	pristine := e.State([]string{"sysctl net/"}, ns)

	a := e.OK(call("ADD", ""))
	told := calls()
	for _, want := range []string{
		"ADD c1 eth0 IgnoreUnknown=1;A=b ", `"runtimeConfig":{"portMappings":[{`, `"cniVersion":"1.1.0"`, `"name":"fused"`, `"address":"10.1.0.2/24"`,
	} {
		if !strings.Contains(told, want) {
			t.Errorf("ADD of the thirdparty without %s: %s", want, told)
		}
	}
	e.OK(call("CHECK", a.Stdout))
	e.OK(call("DEL", a.Stdout))
	if told = calls(); strings.Count(told, "\n") != 2 || !strings.HasPrefix(told, "CHECK") || !strings.Contains(told, "\nDEL") {
		t.Errorf("CHECK and DEL of the thirdparty: %s", told)
	}

	fail := filepath.Join(e.Dir(), "fail-ADD")
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := e.Fail(call("ADD", ""), 11); !strings.Contains(a.Stdout, "told to fail") {
		t.Error(a.Stdout)
	}
	if told = calls(); strings.Count(told, "ADD c1") != 1 || strings.Count(told, "DEL c1") != 1 {
		t.Errorf("a failed ADD called the thirdparty: %s", told)
	}
	e.OK(gc)
	if have := e.State([]string{"sysctl net/"}, ns); have != pristine {
		t.Errorf("after a failed ADD:\n%s\nwant:\n%s", have, pristine)
	}
}

// TestMissing: plugins that are not installed are reported with their JSON paths before
// the first plugin runs.
func TestMissing(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	before := e.State(nil, ns)
	conf := fused(bridge, `{"type":"nowhere"}`, `{"type":"../tuning"}`, `{"type":"bridge","ipam":{"type":"gone"}}`)
	a := e.Fail(rolestest.Call{Type: "chain", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: rolestest.WithKeys(t, conf, keys("ADD", ""))}, 107)
	for _, want := range []string{"plugins[1].type: ", `no \"nowhere\" in CNI_PATH`, "plugins[2].type: ", "plugins[3].ipam.type: "} {
		if !strings.Contains(a.Stdout, want) {
			t.Errorf("%s does not say %s", a.Stdout, want)
		}
	}
	if have := e.State(nil, ns); have != before {
		t.Errorf("state differs\nwant:\n%s\nhave:\n%s", before, have)
	}
}

// TestSwitches: with disableCheck and disableGC the plugins are not called.
func TestSwitches(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	call := func(verb string, more map[string]any) rolestest.Call {
		return rolestest.Call{Type: "chain", Verb: verb, ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: rolestest.WithKeys(t, rolestest.WithKeys(t, fused(bridge), keys(verb, "")), more)}
	}
	a := e.OK(call("ADD", nil))
	ns.Rename(t, "eth0", "eth9")
	prev := map[string]any{"prevResult": json.RawMessage(a.Stdout)}
	e.Fail(call("CHECK", prev), 0)
	prev["disableCheck"] = "true"
	e.OK(call("CHECK", prev))
	e.OK(call("GC", map[string]any{"disableGC": true}))
	if state := e.State(nil, ns); !strings.Contains(state, "10.1.0.2") {
		t.Errorf("GC with disableGC removed the attachment:\n%s", state)
	}
	e.OK(call("DEL", nil))
	var none []roles.AttachmentID
	e.OK(call("GC", map[string]any{"cni.dev/valid-attachments": append([]roles.AttachmentID{}, none...)}))
}
