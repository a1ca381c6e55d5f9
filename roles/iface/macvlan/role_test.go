package macvlan_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	layer3 = `{"name":"l3","type":"macvlan","master":"lan0","mtu":1400,"bcqueuelen":2000,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","mtu":1300,"advmss":1200,"priority":50},
			{"dst":"172.16.0.0/12","table":100},{"dst":"172.16.1.0/24","gw":"10.1.0.9","scope":0}]}}`
	layer2 = `{"name":"l2","type":"macvlan","master":"lan0","mode":"private"}`
	inside = `{"name":"inside","type":"macvlan","master":"in0","mode":"vepa","linkInContainer":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
)

// TestRole runs the suite: the reference's scenarios "create in other ns", "L3
// ADD/DEL", "L2", "DEL unconfigured", "ADD/CHECK/DEL", with a master in the
// host and with one in the container.
func TestRole(t *testing.T) {
	netopstest.Master(t, "lan0")
	rolestest.Suite{
		Table: all.Table(), Type: "macvlan",
		Confs: []rolestest.Conf{
			{Name: "layer3", Refused: map[string]any{"mtu": -1}, JSON: layer3, Tamper: append(append(tampers(), address, route), rolestest.MTUs(false)...)},
			{Name: "layer2", JSON: layer2, NoAddress: true, NoSweeps: true, Tamper: tampers()},
			{Name: "inside", JSON: inside, Prepare: prepare, Tamper: append(tampers(), address)},
		},
	}.Run(t)
}

// prepare creates a master in a container's namespace.
func prepare(t *testing.T, ns *netopstest.NS) {
	t.Helper()
	ns.Do(t, func() error { return netopstest.MakeMaster("in0") })
}

func tampers() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("down", netlink.LinkSetDown),
		rolestest.Inside("gone", netlink.LinkDel),
		rolestest.Inside("MAC", netopstest.OtherMAC),
		rolestest.Inside("mode", func(l netlink.Link) error {
			mode := uint32(nl.MACVLAN_MODE_PRIVATE)
			if l.(*netlink.Macvlan).Mode == netlink.MACVLAN_MODE_PRIVATE {
				mode = nl.MACVLAN_MODE_BRIDGE
			}
			return netopstest.SetMode(l, nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(mode))
		}),
		rolestest.Inside("another kind", func(l netlink.Link) error {
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
			other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
			if err := netlink.LinkAdd(other); err != nil {
				return err
			}
			return netlink.LinkSetAlias(other, l.Attrs().Alias)
		}),
	}
}

var (
	address = rolestest.Inside("address", netopstest.DropAddress)
	route   = rolestest.Inside("default route", netopstest.DropDefault(10, 1, 0, 1))
)
