package hostdevice_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.InitialMain(m, all.Table()) }

const (
	dual = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","mtu":1300,"priority":50}]}`
	// Virtual devices, for machines without hardware for tests.
	devices    = 4
	mac0, mac1 = "02:00:00:00:d0:00", "02:00:00:00:d0:01"
)

// conf is a configuration with the given keys.
func conf(keys string) string { return `{"name":"devices","type":"host-device",` + keys + `}` }

// TestVirtual runs the suite with ends of veth pairs, which the kernel deletes
// with their namespace: the reference's scenarios "by name", "by MAC", "with
// IPAM + CHECK", "without IPAM", "DEL is idempotent". One device has an alias
// and is up; DEL restores both.
func TestVirtual(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "host-device",
		Confs: []rolestest.Conf{
			{
				Name: "device", Host: virtual, NoAddress: true, Tamper: layer1(),
				JSON: conf(`"device":"dev0"`), Other: conf(`"device":"dev1"`),
			},
			{
				Name: "hwaddr", Host: virtual, Tamper: layer3(), NoSweeps: true,
				JSON: conf(`"hwaddr":"` + mac0 + `",` + dual), Other: conf(`"hwaddr":"` + mac1 + `",` + dual),
			},
		},
	}.Run(t)
}

// virtual creates the missing pairs. It gives the first device its alias and
// sets it up, also if a test without a record left it without them.
func virtual(t testing.TB) {
	t.Helper()
	for i := range devices {
		dev, peer := fmt.Sprint("dev", i), fmt.Sprint("peer", i)
		if l, err := netlink.LinkByName(dev); err == nil {
			if i == 0 {
				must(t, netlink.LinkSetAlias(l, "uplink of rack 7"))
				must(t, netlink.LinkSetUp(l))
			}
			continue
		}
		// If the other end was deleted with its namespace, the kernel may
		// delete this one soon.
		if l, err := netlink.LinkByName(peer); err == nil {
			_ = netlink.LinkDel(l)
		}
		hw, err := net.ParseMAC(mac0)
		must(t, err)
		hw[5] = byte(i)
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: dev, HardwareAddr: hw}, PeerName: peer, PeerHardwareAddr: append(net.HardwareAddr{2, 1}, hw[2:]...)}
		must(t, netlink.LinkAdd(pair))
		if i == 0 {
			must(t, netlink.LinkSetAlias(pair, "uplink of rack 7"))
			must(t, netlink.LinkSetUp(pair))
		}
	}
}

// TestStorm attaches and detaches every device repeatedly and kills a third of
// the calls.
func TestStorm(t *testing.T) {
	virtual(t)
	var confs []string
	for i := range devices {
		confs = append(confs, rolestest.WithKeys(t, conf(fmt.Sprintf(`"device":"dev%d",%s`, i, dual)), map[string]any{"cniVersion": "1.1.0"}))
	}
	rolestest.Storm{Table: all.Table(), Type: "host-device", Confs: confs, Containers: devices, Parallel: devices}.Run(t)
}

// TestHardware runs the suite with PCI devices, which survive their namespace:
// "PCI", "kernelpath" and the runtime's deviceID.
func TestHardware(t *testing.T) {
	nic := netopstest.NeedDevices(t)
	var id, path [2]string
	for i, n := range nic {
		path[i] = hardware(t, n)
		id[i] = pciAddress(t, path[i])
	}
	pair := func(key string, values [2]string, more string) (one, other string) {
		return conf(fmt.Sprintf(`%q:%q`, key, values[0]) + more), conf(fmt.Sprintf(`%q:%q`, key, values[1]) + more)
	}
	confs := []rolestest.Conf{
		{Name: "device", Tamper: layer3()},
		{Name: "pciBusID", NoAddress: true, NoSweeps: true},
		{Name: "kernelpath", NoAddress: true, NoSweeps: true},
		{Name: "deviceID", NoSweeps: true},
	}
	confs[0].JSON, confs[0].Other = pair("device", nic, ","+dual)
	confs[1].JSON, confs[1].Other = pair("pciBusID", id, "")
	confs[2].JSON, confs[2].Other = pair("kernelpath", path, "")
	for i, c := range []*string{&confs[3].JSON, &confs[3].Other} {
		*c = conf(fmt.Sprintf(`"runtimeConfig":{"deviceID":%q},%s`, id[i], dual))
	}
	rolestest.Suite{Table: all.Table(), Type: "host-device", Confs: confs}.Run(t)
}

// layer1 is changes that DEL can revert. The reference's DEL fails for ever if
// a device was renamed in its container (#773).
func layer1() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("down", netlink.LinkSetDown),
		rolestest.Inside("renamed", func(l netlink.Link) error {
			if err := netlink.LinkSetDown(l); err != nil {
				return err
			}
			return netlink.LinkSetName(l, "net7")
		}),
	}
}

func layer3() []rolestest.Tamper {
	return append(layer1(),
		rolestest.Inside("address gone", netopstest.DropAddress),
		rolestest.Inside("route gone", netopstest.DropDefault(10, 1, 0, 1)),
	)
}

func link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
