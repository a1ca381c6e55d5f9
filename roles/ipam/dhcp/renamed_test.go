package dhcp_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestRenamed: an interface that is renamed in the container keeps its lease.
func TestRenamed(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", short+isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "1s", "-resendmax", "1s")
	ns := netopstest.New(t)
	c := conf(e, "")
	e.OK(call("ADD", ns, c))
	ns.Rename(t, "eth0", "lan0")
	ns.Change(t, "lan0", netlink.LinkSetUp)
	server.await(t, "DHCPACK on 10.9.0.10", strings.Count(server.said(), "DHCPACK on 10.9.0.10")+2)
	server.kill()
	d.await(t, "removing the address", 1)
	awaitGone(t, ns, "10.9.0.10")
	server = isc(t, wire.server, "-4", short+isc4With(``))
	d.await(t, "leased again", 1)
	if s := ns.Snapshot(t); !strings.Contains(s, "address 10.9.0.10/24 dev lan0") || !strings.Contains(s, "route 0.0.0.0/0 via 10.9.0.1 dev lan0") {
		t.Errorf("container:\n%s", s)
	}
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	if s := d.said(); strings.Contains(s, "is gone") {
		t.Errorf("daemon:\n%s", s)
	}
}
