package bond_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.InitialMain(m, all.Table()) }

const (
	ipam = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}`
	// pairs is the number of veth pairs, for two bonds.
	pairs = 4
)

// conf is a configuration with two links and further keys.
func conf(first, second, keys string) string {
	return fmt.Sprintf(`{"name":"bonds","type":"bond","miimon":"100","links":[{"name":%q},{"name":%q}],%s}`, first, second, keys)
}

func needs(t testing.TB) { netopstest.NeedKind(t, "bond") }

// TestRole runs the suite with links of the host and with links of the container. The links are ends of veth pairs, which the kernel deletes
// with their namespace. They differ in what DEL gives back: one is up and has an alias, another has a larger MTU, and two have the same MAC.
func TestRole(t *testing.T) {
	needs(t)
	rolestest.Suite{
		Table: all.Table(), Type: "bond",
		Confs: []rolestest.Conf{
			{
				Name: "host", Host: onHost, Refused: map[string]any{"mode": "802.1q", "links": []any{map[string]any{"name": "a/b"}}},
				JSON: conf("pair0", "pair1", `"mode":"balance-xor",`+ipam), Other: conf("pair2", "pair3", `"mode":"balance-xor",`+ipam),
				Tamper: []rolestest.Tamper{
					rolestest.Inside("down", netlink.LinkSetDown),
					rolestest.Inside("gone", netlink.LinkDel),
					rolestest.Inside("MAC", netopstest.OtherMAC),
					rolestest.Inside("MTU", netopstest.SmallerMTU),
					rolestest.Inside("address", netopstest.DropAddress),
					rolestest.Inside("miimon", func(l netlink.Link) error { return netopstest.SetMode(l, 3, []byte{50, 0, 0, 0}) }),
					link("a link is down", "pair0", netlink.LinkSetDown),
					link("a link left", "pair1", netlink.LinkSetNoMaster),
					link("a link has another name", "pair1", func(l netlink.Link) error {
						if err := netlink.LinkSetDown(l); err != nil {
							return err
						}
						return netlink.LinkSetName(l, "other")
					}),
				},
			},
			{
				Name: "container", Prepare: inContainer, NoAddress: true, ContainerOnly: true, Refused: map[string]any{"miimon": "abc"},
				JSON:   conf("net0", "net1", `"mode":"active-backup","failOverMac":1,"linksInContainer":true,"mtu":1400`),
				Other:  conf("net2", "net3", `"mode":"balance-tlb","tlbDynamicLb":0,"linksInContainer":true,"mtu":1400`),
				Tamper: []rolestest.Tamper{link("a link left", "net1", netlink.LinkSetNoMaster)},
			},
		},
	}.Run(t)
}

// link is a change of a link in the container.
func link(name, which string, change netopstest.LinkChange) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
		t.Helper()
		ns.Change(t, which, change)
	}}
}

// onHost creates the absent ones of the pairs pair0 to pair3, and gives pair0 its alias and state, which a test without a record does not restore.
func onHost(t testing.TB) {
	t.Helper()
	must(t, makePairs(t, "pair"))
	l, err := netlink.LinkByName("pair0")
	must(t, err)
	must(t, netlink.LinkSetAlias(l, "uplink of rack 7"))
	must(t, netlink.LinkSetUp(l))
}

// inContainer creates the pairs net0 to net3 in a container.
func inContainer(t *testing.T, ns *netopstest.NS) {
	t.Helper()
	ns.Do(t, func() error { return makePairs(t, "net") })
	ns.Change(t, "net0", netlink.LinkSetUp)
}

// makePairs creates the absent pairs of a name: 0 and 1 have different MACs and MTUs, 2 and 3 the same MAC.
func makePairs(t testing.TB, name string) error {
	t.Helper()
	for i := range pairs {
		end, peer := fmt.Sprint(name, i), fmt.Sprint(name, i, "x")
		if _, err := netlink.LinkByName(end); err == nil {
			continue
		}
		// If the other end was deleted with its namespace, the kernel may delete this one soon.
		if l, err := netlink.LinkByName(peer); err == nil {
			_ = netlink.LinkDel(l)
		}
		last := min(i, 2)
		pair := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: end, MTU: []int{1500, 9000, 1500, 1500}[i], HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0xb0, byte(last)}},
			PeerName:  peer, PeerHardwareAddr: net.HardwareAddr{2, 1, 0, 0, 0xb0, byte(i)},
		}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("make pair %q: %w", end, err)
		}
		l, err := netlink.LinkByName(peer)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
