package azurevnet_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

// subnet is the VNet's subnet, which contains the addresses of the suite's
// pods.
const subnet = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.240.0.0/16","rangeStart":"10.240.0.36","rangeEnd":"10.240.0.65","gateway":"10.240.0.1"}]],
	"routes":[{"dst":"0.0.0.0/0"}]}`

const dual = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.240.0.0/16","rangeStart":"10.240.0.36","gateway":"10.240.0.1"}],
	[{"subnet":"fd00:240::/64","rangeStart":"fd00:240::36","gateway":"fd00:240::1"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

var (
	bridge      = `{"name":"azure","type":"azure-vnet","mode":"bridge","bridge":"azure0",` + subnet + `}`
	bridgeDual  = `{"name":"azure","type":"azure-vnet","mode":"bridge","master":"eth0","ipsToRouteViaHost":["169.254.20.10"],` + dual + `}`
	tunnel      = `{"name":"azure","type":"azure-vnet","bridge":"azure0","disableHairpinOnHostInterface":true,` + subnet + `}`
	transparent = `{"name":"azure","type":"azure-vnet","mode":"transparent",` + dual + `}`
)

// TestRole runs the suite in every mode, on a host with its own interface eth0.
func TestRole(t *testing.T) {
	refused := map[string]any{"mtu": -1}
	rolestest.Suite{
		Table: all.Table(), Type: "azure-vnet",
		Confs: []rolestest.Conf{
			{Name: "transparent", JSON: transparent, Refused: refused, Host: eth0, Tamper: []rolestest.Tamper{
				addressGone, linkGone, hostLinkDown, hostRoute, neighbourGone,
			}},
			{Name: "bridge", JSON: bridge, Refused: refused, Host: eth0, Tamper: append(onBridge(), addressGone, linkGone, hostLinkDown)},
			{Name: "bridge dual", JSON: bridgeDual, NoSweeps: true, Host: eth0, Tamper: onBridge()},
			{Name: "tunnel", JSON: tunnel, Host: eth0, Tamper: onBridge()},
		},
	}.Run(t)
}

// TestStorm: 60 containers, 16 at a time, with plugins that are killed at
// random.
func TestStorm(t *testing.T) {
	for _, c := range []struct{ name, conf string }{{"bridge", bridgeDual}, {"transparent", transparent}} {
		t.Run(c.name, func(t *testing.T) {
			eth0(t)
			rolestest.Storm{
				Table: all.Table(), Type: "azure-vnet", Containers: 60, Parallel: 16,
				Confs: []string{rolestest.WithKeys(t, c.conf, map[string]any{"cniVersion": "1.1.0"})},
			}.Run(t)
		})
	}
}

// eth0 is the node's interface. It stays for all tests without a fabric.
func eth0(t testing.TB) {
	t.Helper()
	if _, err := netlink.LinkByName("eth0"); err == nil {
		return
	}
	must(t, netopstest.MakeMaster("eth0"))
	must(t, nodeEth0())
}

// nodeEth0 gives eth0 the node's addresses and routes.
func nodeEth0() error {
	err := netopstest.LinkUp("eth0", "10.240.0.4/16", "10.240.0.5/16", "fd00:240::4/64")
	if err != nil {
		return err
	}
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet([]byte{168, 63, 129, 16}), Gw: []byte{10, 240, 0, 1}, Priority: 100}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: []byte{10, 240, 0, 1}, Priority: 100}),
	)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

// outside is a change on the host that includes the host's end.
func outside(name string, change func(t *testing.T, end netlink.Link)) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		change(t, link(t, rolestest.HostLink(r)))
	}}
}

var (
	linkGone      = rolestest.Inside("container link gone", netlink.LinkDel)
	addressGone   = rolestest.Inside("address gone", netopstest.DropAddress)
	neighbourGone = rolestest.Inside("gateway's neighbour entry gone", func(l netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: netlink.FAMILY_V4, IP: []byte{169, 254, 1, 1}})
	})
	hostLinkDown = rolestest.Outside("host link down", netlink.LinkSetDown)
	hostRoute    = rolestest.Outside("host's route gone", netopstest.DropRoute)
)

// onBridge are the changes to objects that exist only in the modes with a
// bridge.
func onBridge() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Outside("port out of the bridge", netlink.LinkSetNoMaster),
		outside("eth0 out of the bridge", func(t *testing.T, _ netlink.Link) { must(t, netlink.LinkSetNoMaster(link(t, "eth0"))) }),
		outside("neighbour gone", func(t *testing.T, end netlink.Link) {
			b, err := netlink.LinkByIndex(end.Attrs().MasterIndex)
			must(t, err)
			all, err := netlink.NeighList(b.Attrs().Index, netlink.FAMILY_V4)
			must(t, err)
			for i := range all {
				if all[i].State == netlink.NUD_PERMANENT && !all[i].IP.IsMulticast() {
					must(t, netlink.NeighDel(&all[i]))
				}
			}
		}),
		rolestest.OnHost("ruleset flushed", netopstest.FlushRuleset),
	}
}

// pod is a container of a test.
type pod struct {
	*netopstest.NS
	call rolestest.Call
	// addr is the pod's IPv4 address, hostLink the host's end.
	addr, hostLink string
}

// attach creates a container with one attachment.
func attach(t *testing.T, e *rolestest.Env, conf, id string) *pod {
	t.Helper()
	ns := netopstest.New(t)
	p := &pod{NS: ns, call: rolestest.Call{
		Type: "azure-vnet", Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0"}),
	}}
	var r roles.Result
	must(t, json.Unmarshal([]byte(e.OK(p.call).Stdout), &r))
	p.hostLink, p.addr = rolestest.HostLink(&r), r.IPs[0].Address.IP.String()
	t.Cleanup(func() { p.detach(e) })
	return p
}

// detach runs DEL.
func (p *pod) detach(e *rolestest.Env) {
	p.call.Verb = "DEL"
	e.OK(p.call)
}

// collect runs GC without valid attachments.
func collect(t *testing.T, e *rolestest.Env, conf string) {
	t.Helper()
	e.OK(rolestest.Call{Type: "azure-vnet", Verb: "GC", Conf: rolestest.WithKeys(t, conf, map[string]any{
		"cniVersion": "1.1.0", "cni.dev/valid-attachments": []string{},
	})})
}
