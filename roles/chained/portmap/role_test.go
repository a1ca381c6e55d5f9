package portmap_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	dualBridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	ptp = `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`

	ports = `{"name":"ports","type":"portmap","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[
		{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5000,"containerPort":5000,"protocol":"udp","hostIP":"192.0.2.1","range":3}]}}`
	judged = `{"name":"judged","type":"portmap","conditionsV4":["!","-s","10.9.0.0/16"],"conditionsV6":["ip6","saddr","!=","fd09::/16"],
		"markMasqBit":7,"masqAll":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}`
	none = `{"name":"none","type":"portmap"}`
)

// TestRole runs the suite over every kind of object: the reference's scenarios
// "parse ADD/DEL", "default/explicit backend", "nft rules, CHECK, masqAll
// true/false", "chain create/destroy/idempotent".
func TestRole(t *testing.T) {
	rolestest.Suite{
		Whole: true, Table: all.Table(), Type: "portmap",
		Confs: []rolestest.Conf{
			{
				Name: "ports", JSON: ports, Chain: bridge, Other: rolestest.WithKeys(t, ports, map[string]any{"runtimeConfig": otherPorts}),
				Refused: map[string]any{"markMasqBit": 99}, Tamper: []rolestest.Tamper{flushed, rulesGone, elementGone, localnet},
			},
			{Name: "judged", JSON: judged, Chain: dualBridge, NoSweeps: true, Other: rolestest.WithKeys(t, judged, map[string]any{"runtimeConfig": otherPorts}), Tamper: []rolestest.Tamper{flushed}},
			{Name: "ptp", JSON: ports, Chain: ptp, Other: rolestest.WithKeys(t, ports, map[string]any{"runtimeConfig": otherPorts})},
			{Name: "none", JSON: none, Chain: bridge, NoSweeps: true},
		},
	}.Run(t)
}

// otherPorts are the ports of a second container, with a range, so that the sets and
// chains for ranges exist.
var otherPorts = map[string]any{"portMappings": []map[string]any{
	{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 6000, "containerPort": 6000, "protocol": "tcp", "range": 2},
}}

// node is a change to the host.
func node(name string, change func(*testing.T)) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, _ *roles.Result) { change(t) }}
}

var (
	flushed     = rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset)
	rulesGone   = rolestest.OnHost("rules flushed", netopstest.FlushRules)
	elementGone = node("port gone", func(t *testing.T) { run(t, "nft", "delete", "element", "inet", "cnibox", "portmap4", "{ tcp . 8080 }") })
	localnet    = node("route_localnet off", func(t *testing.T) { set(t, "ipv4/conf/br0/route_localnet", "0") })
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run executes a program on the host.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// set sets a sysctl below net/ of the calling thread's namespace. A missing one
// belongs to a module that is not loaded and is ignored.
func set(t *testing.T, key, value string) {
	t.Helper()
	err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
}
