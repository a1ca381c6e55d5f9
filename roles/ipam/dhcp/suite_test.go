package dhcp_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestSuite runs the suite with macvlan and bridge as the interface plugins: the
// reference's scenarios "ADD/DEL", "double DEL" and "many links". One
// daemon serves all of its nodes.
func TestSuite(t *testing.T) {
	wire := newWire(t)
	dnsmasq(t, wire.server, "10")
	e := rolestest.NewEnv(t, all.Table())
	d := daemonAt(t, e, "/run/cni/dhcp.sock")
	tamper := []rolestest.Tamper{
		{Name: "address gone", Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, r *roles.Result) {
			ns.Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.AddrDel(l, &netlink.Addr{IPNet: &r.IPs[0].Address})
			})
		}},
		{Name: "lease gone", Do: func(t *testing.T, e *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
			c := direct("DEL", ns, `{"cniVersion":"1.1.0","name":"lan","type":"bridge","ipam":{"type":"dhcp"}}`)
			e.OK(c)
		}},
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up1", MasterIndex: bridge(t).Attrs().Index}, PeerName: "up0"}))
	for _, name := range []string{"up0", "up1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
		t.Cleanup(func() { _ = netlink.LinkDel(l) })
	}
	rolestest.Suite{
		Table: all.Table(), Type: "macvlan",
		Confs: []rolestest.Conf{
			{Name: "macvlan", NoSweeps: true, Tamper: tamper, JSON: `{"name":"lan","type":"macvlan","master":"up0","ipam":{"type":"dhcp"}}`},
		},
	}.Run(t)
	rolestest.Suite{
		Table: all.Table(), Type: "bridge",
		Confs: []rolestest.Conf{
			{Name: "ipv4", Tamper: tamper, JSON: `{"name":"lan","type":"bridge","bridge":"br0","ipam":{"type":"dhcp"}}`},
			{Name: "dual", NoSweeps: true, JSON: `{"name":"lan","type":"bridge","bridge":"br0","ipam":{"type":"dhcp","families":["ipv4","ipv6"]}}`},
		},
	}.Run(t)
	if n := recorded(t, e); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if s := d.said(); strings.Contains(s, "level=ERROR") {
		t.Errorf("daemon:\n%s", s)
	}
}
