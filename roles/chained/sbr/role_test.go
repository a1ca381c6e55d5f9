package sbr_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"192.168.0.0/16","priority":50,"mtu":1300}]}}`
	macvlan = `{"type":"macvlan","master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	ptp     = `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`

	plain   = `{"name":"plain","type":"sbr"}`
	table   = `{"name":"table","type":"sbr","table":5000}`
	gateway = `{"name":"gateway","type":"sbr","gateways":["10.1.0.254"],"addSourceHints":true}`
)

// TestRole runs the suite after interface plugins: the reference's scenarios
// "basic", "default route preset", "several IPs", "version too old", "table",
// "static gw" and "addSourceHints". Each has a CHECK that compares the state
// (plugins#297), and the interface plugin's CHECK, which fails with the
// reference's sbr.
func TestRole(t *testing.T) {
	netopstest.Master(t, "lan0")
	rolestest.Suite{
		Table: all.Table(), Type: "sbr",
		Confs: []rolestest.Conf{
			{Name: "plain", Chain: bridge, ContainerOnly: true, JSON: plain, Refused: map[string]any{"table": 0, "gateways": []string{"x"}}, Tamper: append(tampers(), moved...)},
			{Name: "table", Chain: bridge, ContainerOnly: true, JSON: table, NoSweeps: true, Tamper: tampers()},
			{Name: "gateway", Chain: macvlan, ContainerOnly: true, NoAddress: true, JSON: gateway, NoSweeps: true, Tamper: append(tampers(), moved[0])},
			{Name: "point to point", Chain: ptp, ContainerOnly: true, JSON: plain, NoSweeps: true, Tamper: append(tampers(), moved[0])},
		},
	}.Run(t)
}

// tampers are changes that CHECK must detect with every configuration.
func tampers() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("rule gone", func(netlink.Link) error {
			rules, err := netlink.RuleList(unix.AF_INET)
			if err != nil {
				return err
			}
			for _, r := range rules {
				if r.Src != nil {
					return netlink.RuleDel(&r)
				}
			}
			return nil
		}),
	}
}

// moved are changes to the routes.
var moved = []rolestest.Tamper{
	rolestest.Inside("default route gone", func(l netlink.Link) error {
		return change(l, 100, nil, netlink.RouteDel)
	}),
	rolestest.Inside("subnet gone", func(l netlink.Link) error {
		subnet, err := netlink.ParseIPNet("10.1.0.0/24")
		if err != nil {
			return err
		}
		return change(l, 100, subnet, netlink.RouteDel)
	}),
	rolestest.Inside("a route in the main table", func(l netlink.Link) error {
		subnet, err := netlink.ParseIPNet("172.16.0.0/12")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: subnet, Scope: netlink.SCOPE_LINK})
	}),
}
