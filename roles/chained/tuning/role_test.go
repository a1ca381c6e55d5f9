package tuning_test

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"mtu":1450,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`
	ptp     = `{"type":"ptp","ipMasq":true,"mtu":1450,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`
	macvlan = `{"type":"macvlan","master":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	layer2  = `{"type":"bridge","bridge":"br0"}`

	full = `{"name":"full","type":"tuning","mac":"02:00:00:00:00:aa","mtu":1400,"promisc":true,"allmulti":true,"txQLen":500,"dataDir":"/run/elsewhere",
		"sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"1","net/ipv6/conf/IFNAME/mtu":"1300"}}`
	fromArgs = `{"name":"fromargs","type":"tuning","mac":"02:00:00:00:00:aa","args":{"cni":{"mac":"02:00:00:00:00:bb","promisc":true,"mtu":1400,
		"allmulti":true,"txQLen":500,"sysctl":{"net.core.somaxconn":"500"}}}}`
	fromArgsOther = `{"name":"fromargs","type":"tuning","args":{"cni":{"promisc":true,"sysctl":{"net.core.somaxconn":"500"}}}}`
	runtimeMAC    = `{"name":"runtime","type":"tuning","mac":"02:00:00:00:00:aa","capabilities":{"mac":true},"runtimeConfig":{"mac":"02:00:00:00:00:bb"}}`
	envMAC        = `{"name":"env","type":"tuning"}`
	nothing       = `{"name":"nothing","type":"tuning"}`
)

// TestRole runs the suite after interface plugins: the reference's scenarios
// "promisc, mtu, txQLen, allmulti (conf, args)", "mac (conf, args, CNI_ARGS,
// runtimeConfig)", "all at once with dataDir" and "passthrough", each with ADD,
// CHECK and DEL, and an interface plugin that sets its own MTU.
func TestRole(t *testing.T) {
	netopstest.Master(t, "lan0")
	rolestest.Suite{
		Table: all.Table(), Type: "tuning",
		Confs: []rolestest.Conf{
			{
				Name: "full", Chain: bridge, JSON: full,
				Refused: map[string]any{"mtu": -1, "mac": "x", "sysctl": map[string]any{"kernel.panic": "1"}},
				Tamper:  append(tampers(), hostMTU),
			},
			{Name: "args", Chain: macvlan, JSON: fromArgs, Other: fromArgsOther, NoSweeps: true, Tamper: tampers()},
			{Name: "runtime", Chain: ptp, JSON: runtimeMAC, NoSweeps: true, Tamper: tampers()[:1]},
			{Name: "env", Chain: layer2, JSON: envMAC, Args: "IgnoreUnknown=1;MAC=02:00:00:00:00:cc", NoAddress: true, NoSweeps: true, Tamper: tampers()[:1]},
			{Name: "nothing", Chain: layer2, JSON: nothing, NoAddress: true, NoSweeps: true},
		},
	}.Run(t)
}

// tampers are changes in the container's namespace. The first changes the MAC.
func tampers() []rolestest.Tamper {
	return []rolestest.Tamper{
		rolestest.Inside("MAC", func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x99}) }),
		rolestest.Inside("MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1350) }),
		rolestest.Inside("promisc", netlink.SetPromiscOff),
		rolestest.Inside("allmulti", netlink.LinkSetAllmulticastOff),
		rolestest.Inside("txQLen", func(l netlink.Link) error { return netlink.LinkSetTxQLen(l, 1) }),
		{Name: "sysctl", Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
			set(t, ns, "net/core/somaxconn", "400")
		}},
	}
}

// hostMTU changes the MTU of the host's end.
var hostMTU = rolestest.Tamper{Name: "MTU of the host's end", Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
	l, err := netlink.LinkByName(r.Interfaces[1].Name)
	if err == nil {
		err = netlink.LinkSetMTU(l, 1350)
	}
	if err != nil {
		t.Fatal(err)
	}
}}

// set sets a sysctl of a namespace.
func set(t *testing.T, ns *netopstest.NS, key, value string) {
	t.Helper()
	ns.Do(t, func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) })
}
