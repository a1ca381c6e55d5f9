package overlay_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestEgress: where the agent masquerades, pods leave with the delegate's egressAddress. The overlay's networks and those of
// -ip-masq-except are reached with their own addresses, as without it.
func TestEgress(t *testing.T) {
	out := netopstest.New(t)
	f, err := os.Open(out.Path())
	must(t, err)
	defer f.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd()))}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { must(t, netlink.LinkDel(pair)) })
	must(t, netopstest.LinkUp("out0", "192.0.2.1/24"))
	netopstest.LocalAddress(t, "203.0.113.7/32")
	route := func(dst, gateway string) error {
		p, err := netlink.ParseIPNet(dst)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: p, Gw: net.ParseIP(gateway)})
	}
	// The other machine is a node of the overlay, and has the network that is excepted.
	out.Do(t, func() error { return netopstest.LinkUp("eth0", "192.0.2.2/24", "10.244.2.2/32", "198.51.100.7/32") })
	out.Do(t, func() error { return route("203.0.113.7/32", "192.0.2.1") })
	out.Do(t, func() error { return route("10.244.1.0/24", "192.0.2.1") })
	must(t, route("10.244.2.0/24", "192.0.2.2"))
	must(t, route("198.51.100.0/24", "192.0.2.2"))

	network, subnet, except := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	n := netops.New(netops.Options{})
	defer n.Close()
	filter, err := overlay.OpenFilter(n)
	must(t, err)
	defer filter.Close()
	must(t, filter.Ensure(t.Context(), []overlay.NAT{{Network: network, Subnet: subnet, Masquerade: true, Exceptions: []netip.Prefix{except}}}))
	defer func() { must(t, filter.Remove(t.Context())) }()

	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	must(t, store.WriteOverlay(path, &store.Overlay{
		BootID: strings.TrimSpace(string(boot)), Ready: true, IPMasq: true, IPMasqExcept: []netip.Prefix{except}, MTU: 1450,
		IPv4: &store.OverlayFamily{Networks: []netip.Prefix{network}, Subnet: subnet, MTU: 1450},
	}))
	e := rolestest.NewEnv(t, all.Table())
	attach := func(id, keys string) *netopstest.NS {
		ns := netopstest.New(t)
		c := rolestest.Call{
			Type: "vxlan", Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0",
			Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true%s}}`, path, keys),
		}
		result := e.OK(c).Stdout
		c.Conf = rolestest.WithKeys(t, c.Conf, map[string]any{"prevResult": json.RawMessage(result)})
		c.Verb = "CHECK"
		e.OK(c)
		t.Cleanup(func() {
			c.Verb = "DEL"
			e.OK(c)
		})
		return ns
	}
	t.Cleanup(func() { // after both DELs: the bridge stays for the next container
		e.OK(rolestest.Call{Type: "vxlan", Verb: "GC", Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true},"cni.dev/valid-attachments":[]}`, path)})
	})
	egress, plain := attach("a", `,"egressAddress":"203.0.113.7"`), attach("b", "")
	for _, c := range []struct{ to, egress, plain string }{
		{"192.0.2.2", "203.0.113.7", "192.0.2.1"},
		{"10.244.2.2", "10.244.1.2", "10.244.1.3"},
		{"198.51.100.7", "10.244.1.2", "10.244.1.3"},
	} {
		netopstest.CheckDatagram(t, "with egressAddress to "+c.to, egress, netopstest.Listen(t, out, c.to+":0"), c.egress)
		netopstest.CheckDatagram(t, "without it to "+c.to, plain, netopstest.Listen(t, out, c.to+":0"), c.plain)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
