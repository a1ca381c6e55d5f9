package firewall_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	behindBridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	behindPTP = `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	behindOwn = `{"type":"macvlan","master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
)

// TestRole runs the suite with every backend, policy and other firewall.
func TestRole(t *testing.T) {
	refused := map[string]any{"ingressPolicy": "closed", "iptablesAdminChainName": "a b", "backend": "pf"}
	suite([]rolestest.Conf{
		{Name: "auto alone", NoSweeps: true, Chain: behindBridge, JSON: `{"name":"pods","type":"firewall"}`, Refused: refused, Repeatable: true},
		{
			Name: "auto beside docker", Chain: behindBridge, JSON: `{"name":"pods","type":"firewall","backend":""}`, Repeatable: true,
			Host: docker, Tamper: []rolestest.Tamper{flushed, jumpless},
		},
		{
			Name: "auto beside iptables-legacy", Chain: behindBridge, JSON: `{"name":"pods","type":"firewall"}`, Repeatable: true,
			Host: legacyDrop, Tamper: []rolestest.Tamper{legacyFlushed},
		},
		{
			Name: "same-bridge", NoSweeps: true, Chain: behindBridge, JSON: `{"name":"pods","type":"firewall","ingressPolicy":"same-bridge"}`, Repeatable: true,
			Tamper: []rolestest.Tamper{unruled},
		},
		{
			Name: "isolated", Chain: behindBridge, JSON: `{"name":"pods","type":"firewall","ingressPolicy":"isolated"}`, Repeatable: true,
			Tamper: []rolestest.Tamper{unruled, connected},
		},
		{
			Name: "iptables", NoSweeps: true, Chain: behindBridge, Repeatable: true, JSON: `{"name":"pods","type":"firewall","backend":"iptables","iptablesAdminChainName":"MY-ADMIN"}`,
			Tamper: []rolestest.Tamper{flushed, jumpless},
		},
		{
			Name: "ptp", Chain: behindPTP, JSON: `{"name":"pods","type":"firewall","backend":"iptables","ingressPolicy":"same-bridge"}`, Repeatable: true,
			Tamper: []rolestest.Tamper{flushed, unruled},
		},
		{
			Name: "by address", Chain: behindOwn, JSON: `{"name":"pods","type":"firewall","backend":"iptables"}`, Repeatable: true,
			Host: func(t testing.TB) { master(t, "lan0") }, Tamper: []rolestest.Tamper{flushed},
		},
		{Name: "nothing", NoSweeps: true, Chain: behindBridge, JSON: `{"name":"pods","type":"firewall","backend":"nftables"}`, Repeatable: true},
	}...).Run(t)
}

// suite is the conformance suite with configurations.
func suite(confs ...rolestest.Conf) rolestest.Suite {
	return rolestest.Suite{Table: all.Table(), Type: "firewall", Confs: confs}
}

// master creates the device for macvlan unless it exists.
func master(t testing.TB, name string) {
	t.Helper()
	if exec.Command("ip", "link", "show", name).Run() != nil {
		netopstest.Master(t, name)
	}
}

// run executes a program on the test's host.
func run(t testing.TB, line string) string {
	t.Helper()
	w := strings.Fields(line)
	out, err := exec.Command(w[0], w[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// docker has its own policy and rules, for both address families.
func docker(t testing.TB) {
	t.Helper()
	if strings.Contains(run(t, "iptables-nft -S FORWARD"), "docker0") {
		return
	}
	for _, p := range []string{"iptables-nft", "ip6tables-nft"} {
		run(t, p+" -P FORWARD DROP")
		run(t, p+" -A FORWARD -i docker0 ! -o docker0 -j ACCEPT")
	}
	t.Cleanup(func() { deleteFilters(t) })
}

// deleteFilters deletes iptables' filter tables. Ours may have been deleted
// with its last rule.
func deleteFilters(t testing.TB) {
	t.Helper()
	for _, table := range []string{"ip filter", "ip6 filter"} {
		run(t, "nft add table "+table)
		run(t, "nft delete table "+table)
	}
}

// nftDrop is only the policy, made without iptables.
func nftDrop(t testing.TB) {
	t.Helper()
	for _, table := range []string{"ip filter", "ip6 filter"} {
		run(t, "nft add table "+table)
		run(t, "nft add chain "+table+" FORWARD { type filter hook forward priority 0 ; policy drop ; }")
	}
	t.Cleanup(func() { deleteFilters(t) })
}

func legacyDrop(t testing.TB) {
	t.Helper()
	for _, p := range []string{"iptables-legacy", "ip6tables-legacy"} {
		run(t, p+" -P FORWARD DROP")
		t.Cleanup(func() { run(t, p+" -P FORWARD ACCEPT") })
	}
}

// tamper is a change by programs on the host.
func tamper(name string, lines ...string) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, _ *roles.Result) {
		t.Helper()
		for _, l := range lines {
			run(t, l)
		}
	}}
}

var (
	flushed       = tamper("rules flushed", "iptables-nft -F CNI-FORWARD")
	jumpless      = tamper("jump deleted", "iptables-nft -D FORWARD 1")
	legacyFlushed = tamper("legacy rules flushed", "iptables-legacy -F")
	unruled       = tamper("table deleted", "nft delete table inet cnibox")
	connected     = rolestest.Tamper{Name: "port not isolated", Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		t.Helper()
		run(t, "bridge link set dev "+r.Interfaces[1].Name+" isolated off")
	}}
)
