package hostdevice_test

import (
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

const (
	network = `"device":"dev0","useInterfaceNetwork":true`
	// uplink are commands of ip(8) that configure dev0 on the host, without what
	// useInterfaceNetwork leaves out.
	uplink = `address replace 192.0.2.5/24 dev dev0
address replace 192.0.2.6/24 dev dev0 noprefixroute
address replace 2001:db8:2::5/64 dev dev0 nodad
route replace default via 192.0.2.1 dev dev0 metric 70 table 1234
route replace 198.51.100.0/24 via 192.0.2.1 dev dev0 src 192.0.2.6 mtu 1400
route replace 203.0.113.1/32 dev dev0 scope link
route replace default via 2001:db8:2::1 dev dev0 table 1234
route replace 2001:db8:3::/64 dev dev0
rule add priority 500 from 192.0.2.5 lookup 1234
rule add priority 501 from 2001:db8:2::/64 lookup 1234`
)

// withNetwork creates the devices, and gives dev0 a network. It may have it
// already.
func withNetwork(t testing.TB) {
	t.Helper()
	virtual(t)
	for _, line := range strings.Split(uplink, "\n") {
		family := "-4"
		if strings.Contains(line, "2001:") {
			family = "-6"
		}
		out, err := exec.Command("ip", append([]string{family}, strings.Fields(line)...)...).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "File exists") {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

// withoutNetwork removes the policy rules, which other tests would find. The rest
// ends with the devices.
func withoutNetwork(t testing.TB) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		must(t, err)
		for _, r := range rules {
			if r.Table == 1234 {
				must(t, netlink.RuleDel(&r))
			}
		}
	}
}

// TestNetworkSuite: the suite's sweeps compare the host's addresses and routes
// after each failure and kill.
func TestNetworkSuite(t *testing.T) {
	t.Cleanup(func() { withoutNetwork(t) })
	rolestest.Suite{
		Table: all.Table(), Type: "host-device",
		Confs: []rolestest.Conf{{
			Name: "network", Host: withNetwork, NoAddress: true, Tamper: append(layer1(), rolestest.Inside("address gone", netopstest.DropAddress)),
			ContainerOnly: true, // only the record lists the policy rules
			JSON:          conf(network), Other: conf(`"device":"dev1","useInterfaceNetwork":true`),
		}},
	}.Run(t)
}

// TestNetwork compares what the container has with what the host had.
func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		name, keys string
		addresses  []string
		routes     []string // of the container, as ip prints them
		result     []string
	}{
		{
			name: "alone", keys: network,
			addresses: []string{"192.0.2.5/24", "192.0.2.6/24", "2001:db8:2::5/64"},
			result: []string{
				`{"dst":"203.0.113.1/32","table":254,"scope":253}`,
				`{"dst":"0.0.0.0/0","gw":"192.0.2.1","priority":70,"table":1234}`,
			},
		},
		{
			name: "beside IPAM", keys: network + "," + dual,
			addresses: []string{"10.1.0.2/24", "fd00:1::2/64", "192.0.2.5/24", "192.0.2.6/24", "2001:db8:2::5/64"},
			result: []string{
				`{"dst":"192.168.0.0/16","mtu":1300,"priority":50}`,
				`{"dst":"203.0.113.1/32","table":254,"scope":253}`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			withNetwork(t)
			t.Cleanup(func() { withoutNetwork(t) })
			before := r.State(nil)
			// What has a lifetime is neither copied nor restored.
			must(t, netlink.AddrReplace(link(t, "dev0"), &netlink.Addr{
				IPNet: &net.IPNet{IP: net.ParseIP("2001:db8:9::9"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD, ValidLft: 4000, PreferedLft: 3000,
			}))
			add := r.call("ADD", "c1", conf(c.keys))
			a := r.OK(add)
			var res roles.Result
			must(t, json.Unmarshal([]byte(a.Stdout), &res))
			var have []string
			for _, ip := range res.IPs {
				have = append(have, ip.Address.String())
			}
			if strings.Join(have, " ") != strings.Join(c.addresses, " ") {
				t.Errorf("the result has the addresses %v, want %v", have, c.addresses)
			}
			routes, err := json.Marshal(res.Routes)
			must(t, err)
			for _, want := range c.result {
				if !strings.Contains(string(routes), want) {
					t.Errorf("the result has the routes %s, want %s", routes, want)
				}
			}
			inside := r.spaces["c1"].Snapshot(t)
			for _, want := range []string{
				"192.0.2.5/24", "192.0.2.6/24", "2001:db8:2::5/64",
				"0.0.0.0/0 via 192.0.2.1 dev eth0 table 1234 metric 70", "198.51.100.0/24 via 192.0.2.1 dev eth0", "203.0.113.1/32 via <nil> dev eth0",
				"2001:db8:3::/64 via <nil> dev eth0", "::/0 via 2001:db8:2::1 dev eth0 table 1234",
				"rule 500: from 192.0.2.5/32 to all table 1234", "rule 501: from 2001:db8:2::/64 to all table 1234",
			} {
				if !strings.Contains(inside, want) {
					t.Errorf("the container lacks %q:\n%s", want, inside)
				}
			}
			if strings.Contains(inside, "2001:db8:9::9") {
				t.Errorf("the container has an address that nothing renews:\n%s", inside)
			}
			r.OK(r.check("c1", conf(c.keys), a))
			r.spaces["c1"].Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index, Table: 1234}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
				if err != nil || len(routes) != 1 {
					return errors.Join(err, errors.New("want one route"))
				}
				return netlink.RouteDel(&routes[0])
			})
			r.Fail(r.check("c1", conf(c.keys), a), 0)
			r.OK(r.call("DEL", "c1", conf(c.keys)))
			r.same(before, "after DEL")
		})
	}
}

// TestNetworkUserspace: a device with a userspace driver has no network to copy.
func TestNetworkUserspace(t *testing.T) {
	netopstest.HardwareTree(t)
	netopstest.Hardware{Bus: "pci", ID: "0000:03:00.0", Path: "pci0000:00/0000:00:1c.0/0000:03:00.0", Driver: "vfio-pci"}.Add(t)
	r := newRig(t)
	r.mentions(r.Fail(r.call("ADD", "c1", conf(`"pciBusID":"0000:03:00.0","useInterfaceNetwork":true`)), 7), "useInterfaceNetwork: the device has a userspace driver")
}
