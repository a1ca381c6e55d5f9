package loopback_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

// TestRole runs the suite: the reference's scenarios "UP / DOWN".
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "loopback",
		Confs: []rolestest.Conf{{
			Name: "plain", JSON: `{"name":"lo","type":"loopback"}`, Repeatable: true, Stateless: true,
			Tamper: []rolestest.Tamper{{Name: "down", Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
				ns.Reset(t)
			}}},
		}},
	}.Run(t)
}

// TestForeignAddress: an address on lo that is not a loopback address is an
// error, and lo stays down.
func TestForeignAddress(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	ns.Do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("192.0.2.1/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, a)
	})
	before := ns.Snapshot(t)
	e.Fail(rolestest.Call{
		Type: "loopback", Verb: "ADD", ID: "c", Netns: ns.Path(), IfName: "lo",
		Conf: `{"cniVersion":"1.0.0","name":"lo","type":"loopback"}`,
	}, 0)
	if after := ns.Snapshot(t); after != before {
		t.Errorf("lo changed:\n%s\nwas:\n%s", after, before)
	}
}

// TestPrevResult: in a chain the role returns prevResult.
func TestPrevResult(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	const prev = `{"cniVersion":"1.0.0","interfaces":[{"name":"x"}],"dns":{"domain":"example.org"}}`
	a := e.OK(rolestest.Call{
		Type: "loopback", Verb: "ADD", ID: "c", Netns: ns.Path(), IfName: "lo",
		Conf: `{"cniVersion":"1.0.0","name":"lo","type":"loopback","prevResult":` + prev + `}`,
	})
	rolestest.SameJSON(t, a.Stdout, prev)
}
