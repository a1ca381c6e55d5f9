package ovs_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/ovs"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge    = "ovs0"
	bridgeMAC = "02:00:00:00:0f:01"
	dual      = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`
)

// start starts Open vSwitch with a bridge.
func start(t testing.TB) *ovs.Switch {
	t.Helper()
	s := ovs.Start(t)
	s.Bridge(t, bridge, bridgeMAC)
	return s
}

// conf returns a configuration for a switch.
func conf(s *ovs.Switch, name, keys string) string {
	return fmt.Sprintf(`{"name":%q,"type":"ovs","bridge":%q,"socket_file":"unix:%s"%s}`, name, bridge, s.Socket, keys)
}

// TestRole runs the suite that every role passes, in namespaces of its own.
func TestRole(t *testing.T) {
	s := start(t)
	beyond := func() string { return s.Ports(t, bridge) }
	set := func(name string, args ...string) rolestest.Tamper {
		return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
			t.Helper()
			s.Vsctl(t, append([]string{"set", args[0], rolestest.HostLink(r)}, args[1:]...)...)
		}}
	}
	portGone := rolestest.Tamper{Name: "port gone", Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		t.Helper()
		s.Vsctl(t, "del-port", bridge, rolestest.HostLink(r))
	}}
	rolestest.Suite{
		Table: all.Table(), Type: "ovs",
		Confs: []rolestest.Conf{
			{
				Name: "access", Beyond: beyond, JSON: conf(s, "access", `,"vlan":100,"mtu":1400,`+dual),
				Refused: map[string]any{"socket_file": "ssl:127.0.0.1:6640"},
				Tamper: append(rolestest.MTUs(true),
					rolestest.Inside("container link down", netlink.LinkSetDown),
					rolestest.Inside("container link gone", netlink.LinkDel),
					rolestest.Inside("MAC changed", netopstest.OtherMAC),
					rolestest.Inside("address gone", netopstest.DropAddress),
					rolestest.Outside("host link down", netlink.LinkSetDown),
					set("tag", "port", "tag=101"), set("mode", "port", "vlan_mode=native-tagged"), portGone,
				),
			},
			{
				Name: "trunk", Beyond: beyond, NoAddress: true, NoSweeps: true, Args: "OvnPort=lsp-1;K8S_POD_UID=0b1f",
				JSON:    conf(s, "trunk", `,"trunk":[{"id":42},{"minID":1000,"maxID":1003}],"ofport_request":7`),
				Refused: map[string]any{"trunk": []map[string]any{{"id": 5000}}},
				Tamper:  []rolestest.Tamper{set("trunks", "port", "trunks=42"), set("iface-id", "interface", "external_ids:iface-id=lsp-2"), portGone},
			},
		},
	}.Run(t)
}
