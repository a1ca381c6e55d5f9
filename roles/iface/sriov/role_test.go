package sriov_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

const dual = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}`

// conf is a configuration with the given keys for a VF.
func conf(f netopstest.Function, keys string) string {
	return fmt.Sprintf(`{"name":"functions","type":"sriov","deviceID":%q%s}`, f.Device, keys)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pristine gives the card the settings that it had before, if the record with them was lost.
func pristine(t testing.TB, card string, before []netlink.VfInfo, f []netopstest.Function) {
	t.Helper()
	pf, err := netlink.LinkByName(card)
	must(t, err)
	for i, now := range pf.Attrs().Vfs {
		if fmt.Sprint(now) == fmt.Sprint(before[i]) {
			continue
		}
		must(t, netlink.LinkSetVfVlan(pf, i, before[i].Vlan))
		must(t, netlink.LinkSetVfSpoofchk(pf, i, before[i].Spoofchk))
		must(t, netlink.LinkSetVfTrust(pf, i, before[i].Trust != 0))
		must(t, netlink.LinkSetVfRate(pf, i, int(before[i].MinTxRate), int(before[i].MaxTxRate)))
		must(t, netlink.LinkSetVfHardwareAddr(pf, i, before[i].Mac))
		own, err := netlink.LinkByName(f[i].Link)
		must(t, err)
		must(t, netlink.LinkSetUp(own)) // igbvf takes the address when it is set down
		must(t, netlink.LinkSetDown(own))
	}
}

// TestRole runs the suite with an Intel 82576, on which VFs and the wire are real. Its driver has no link_state and no min_tx_rate.
func TestRole(t *testing.T) {
	card, f := netopstest.NeedFunctions(t)
	pf, err := netlink.LinkByName(card)
	must(t, err)
	host := func(t testing.TB) { t.Helper(); pristine(t, card, pf.Attrs().Vfs, f) }
	atCard := func(name string, change func() error) rolestest.Tamper { return rolestest.OnHost(name, change) }
	const keys = `,"vlan":100,"vlanQoS":3,"spoofchk":"off","trust":"on","max_tx_rate":100,"mac":"02:00:00:00:00:0%d",` + dual
	rolestest.Suite{
		Table: all.Table(), Type: "sriov",
		Confs: []rolestest.Conf{
			{
				Name: "keys", Host: host, JSON: conf(f[0], fmt.Sprintf(keys, 7)), Other: conf(f[1], fmt.Sprintf(keys, 8)),
				Refused: map[string]any{"vlan": 4095, "vlanQoS": 8, "vlanProto": "802.3", "mac": "x", "min_tx_rate": -1, "max_tx_rate": -1, "link_state": "up", "deviceID": "1"},
				Tamper: []rolestest.Tamper{
					atCard("VLAN", func() error { return netlink.LinkSetVfVlanQos(pf, 0, 101, 3) }),
					atCard("priority", func() error { return netlink.LinkSetVfVlanQos(pf, 0, 100, 4) }),
					atCard("spoof check", func() error { return netlink.LinkSetVfSpoofchk(pf, 0, true) }),
					atCard("trust", func() error { return netlink.LinkSetVfTrust(pf, 0, false) }),
					atCard("rate", func() error { return netlink.LinkSetVfRate(pf, 0, 0, 50) }),
					atCard("address at the card", func() error { return netlink.LinkSetVfHardwareAddr(pf, 0, []byte{2, 0, 0, 0, 0, 9}) }),
					rolestest.Inside("down", netlink.LinkSetDown),
					rolestest.Inside("address gone", netopstest.DropAddress),
				},
			},
			{
				Name: "untrusted", Host: host, JSON: conf(f[2], `,"runtimeConfig":{"mac":"02:00:00:00:00:0a"}`), Other: conf(f[3], `,"runtimeConfig":{"mac":"02:00:00:00:00:0b"}`),
				NoAddress: true, NoSweeps: true,
			},
			// Without Host, whatever the card has after each verb must be what it had.
			{Name: "bare", JSON: conf(f[2], ""), Other: conf(f[3], ""), NoAddress: true, NoSweeps: true},
		},
	}.Run(t)
}
