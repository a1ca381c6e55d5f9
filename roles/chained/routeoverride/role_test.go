package routeoverride_test

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"192.168.0.0/16"},{"dst":"172.16.0.0/12","gw":"10.1.0.9"}]}}`

// route returns a change that adds or deletes a route of the interface.
func route(name, dst string, change func(*netlink.Route) error) rolestest.Tamper {
	return rolestest.Inside(name, func(l netlink.Link) error {
		to, err := netlink.ParseIPNet(dst)
		if err != nil {
			return err
		}
		return change(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
	})
}

// TestRole runs the suite behind a bridge: routes that are deleted and added, and all that are flushed.
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "route-override",
		Confs: []rolestest.Conf{
			{
				Name: "single", Chain: bridge, ContainerOnly: true, Refused: map[string]any{"addroutes": []any{map[string]any{"dst": "x"}}},
				JSON: `{"name":"single","type":"route-override","delroutes":[{"dst":"192.168.0.0/16"}],"addroutes":[{"dst":"198.51.100.0/24"},{"dst":"fd00:9::/64"},{"dst":"203.0.113.0/24","gw":"10.1.0.7"}]}`,
				Tamper: []rolestest.Tamper{
					route("an added route is gone", "198.51.100.0/24", netlink.RouteDel), route("a deleted route is back", "192.168.0.0/16", netlink.RouteAdd),
				},
			},
			{
				// The subnet's own route is not prevResult's, so it stays, and CHECK does not miss its deletion. The route that exists already is not the role's.
				Name: "present", Chain: bridge, ContainerOnly: true, NoSweeps: true,
				JSON: `{"name":"present","type":"route-override","delroutes":[{"dst":"10.1.0.0/24"}],"addroutes":[{"dst":"172.16.0.0/12","gw":"10.1.0.9"}]}`,
				Tamper: []rolestest.Tamper{rolestest.Inside("an added route is gone", func(l netlink.Link) error {
					return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: []byte{172, 16, 0, 0}, Mask: net.CIDRMask(12, 32)}, Gw: []byte{10, 1, 0, 9}})
				})},
			},
			{
				Name: "flush", Chain: bridge, ContainerOnly: true, NoSweeps: true,
				JSON:   `{"name":"flush","type":"route-override","flushroutes":true,"addroutes":[{"dst":"198.51.100.0/24"}]}`,
				Tamper: []rolestest.Tamper{route("an added route is gone", "198.51.100.0/24", netlink.RouteDel), route("a default route is back", "0.0.0.0/0", netlink.RouteAdd)},
			},
			{
				Name: "gateway", Chain: bridge, ContainerOnly: true, NoSweeps: true,
				JSON:   `{"name":"gateway","type":"route-override","args":{"cni":{"flushgateway":true}}}`,
				Tamper: []rolestest.Tamper{route("a default route is back", "0.0.0.0/0", netlink.RouteAdd)},
			},
		},
	}.Run(t)
}
