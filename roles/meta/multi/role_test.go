package multi_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	netA = `{"name":"net-a","plugins":[{"type":"bridge","bridge":"br-a","isDefaultGateway":true,"ipMasq":true,"capabilities":{"ips":true,"mac":true},
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}]}`
	netB = `{"name":"net-b","cniVersion":"1.1.0","plugins":[{"type":"bridge","bridge":"br-b","capabilities":{"ips":true,"mac":true},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}]]}},{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_notify":"1"}}]}`
	netC = `{"name":"net-c","type":"ptp","capabilities":{"ips":true},"ipam":{"type":"host-local","ranges":[[{"subnet":"10.3.0.0/24"}]]}}`

	one   = `{"name":"multi","type":"multi","delegates":[` + netA + `]}`
	three = `{"name":"multi","type":"multi","delegates":[` + netA + `,` + netB + `,` + netC + `]}`
	other = `{"name":"multi","type":"multi","interfacePrefix":"more","delegates":[` + netA + `,` + netB + `,` + netC + `]}`
	order = `{"name":"multi","type":"multus","inOrder":true,"delegates":[` + netA + `,` + netB + `,` + netC + `]}`
)

// gone removes an interface, as a process in the container can.
func gone(ifName string) rolestest.Tamper {
	return rolestest.Tamper{Name: ifName, Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
		t.Helper()
		ns.Rename(t, ifName, "moved0")
	}}
}

// TestRole runs the suite with three networks of several plugins each: concurrently,
// which is the default, and in order. Objects of every network are changed.
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "multi",
		Confs: []rolestest.Conf{
			{Name: "one", JSON: one, NoSweeps: true},
			{
				Name: "three", JSON: three, Other: other, Refused: map[string]any{"confDir": "relative", "interfacePrefix": "a/"},
				Tamper: []rolestest.Tamper{gone("eth0"), gone("net1"), gone("net2")},
			},
			{Name: "order", NoSweeps: true, JSON: order, Other: other},
		},
	}.Run(t)
}

// TestStorm: 24 pods with three networks each, with calls that are killed at random.
func TestStorm(t *testing.T) {
	rolestest.Storm{Table: all.Table(), Type: "multi", Containers: 24, Parallel: 8, Confs: []string{
		rolestest.WithKeys(t, three, map[string]any{"cniVersion": "1.1.0"}),
	}}.Run(t)
}
