package dummy_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

func needs(t testing.TB) { netopstest.NeedKind(t, "dummy") }

// TestRole runs the suite: the reference's scenarios "create", "ADD/CHECK/DEL".
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "dummy",
		Confs: []rolestest.Conf{{
			Name: "dual", Needs: needs,
			JSON: `{"name":"dual","type":"dummy","ipam":{"type":"host-local",
				"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"192.168.0.0/16"}]}}`,
			Tamper: []rolestest.Tamper{
				rolestest.Inside("link down", netlink.LinkSetDown),
				rolestest.Inside("link gone", netlink.LinkDel),
				rolestest.Inside("MAC changed", func(l netlink.Link) error {
					return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x99})
				}),
				rolestest.Inside("address gone", func(l netlink.Link) error {
					addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
					if err != nil {
						return err
					}
					return netlink.AddrDel(l, &addrs[0])
				}),
			},
		}},
	}.Run(t)
}

// TestNameOnHost is the reference's "same name in host ns": an interface of the
// host with the container interface's name does not prevent ADD and is not
// changed.
func TestNameOnHost(t *testing.T) {
	needs(t)
	e := rolestest.NewEnv(t, all.Table())
	own := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Alias: "the host's"}}
	if err := netlink.LinkAdd(own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(own); err != nil {
			t.Error(err)
		}
	})
	ns := netopstest.New(t)
	call := rolestest.Call{
		Type: "dummy", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0",
		Conf: `{"cniVersion":"1.1.0","name":"n","type":"dummy","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`,
	}
	before := netopstest.Snapshot(t)
	e.OK(call)
	ns.Do(t, func() error { _, err := netlink.LinkByName("eth0"); return err })
	if have := netopstest.Snapshot(t); have != before {
		t.Errorf("ADD changed the host:\n%s\nbefore:\n%s", have, before)
	}
	call.Verb = "DEL"
	for range 2 {
		e.OK(call)
		if have := netopstest.Snapshot(t); have != before {
			t.Errorf("DEL changed the host:\n%s\nbefore:\n%s", have, before)
		}
	}
}
