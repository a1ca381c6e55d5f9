package dhcp_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestIPvlan: issue #862: all ipvlans of a parent share its hardware address. So servers must answer
// by broadcast and distinguish clients by their identifiers.
func TestIPvlan(t *testing.T) {
	netopstest.NeedKind(t, "ipvlan")
	wire := newWire(t)
	dnsmasq(t, wire.server, "10")
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up1", MasterIndex: bridge(t).Attrs().Index}, PeerName: "up0"}))
	for _, name := range []string{"up0", "up1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
		t.Cleanup(func() { _ = netlink.LinkDel(l) })
	}
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	c := strings.Replace(conf(e, ""), `"type":"bridge","bridge":"br0"`, `"type":"ipvlan","master":"up0"`, 1)
	addresses := map[string]bool{}
	for _, id := range []string{"c1", "c2"} {
		add := call("ADD", netopstest.New(t), c)
		add.Type, add.ID = "ipvlan", id
		addresses[result(t, e.OK(add)).IPs[0].Address.String()] = true
		t.Cleanup(func() {
			add.Verb = "DEL"
			e.OK(add)
		})
	}
	if len(addresses) != 2 {
		t.Errorf("addresses %v", addresses)
	}
}
