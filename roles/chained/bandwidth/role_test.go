package bandwidth_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	bridge = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	ptp = `{"type":"ptp","mtu":1400,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`

	both    = `{"name":"both","type":"bandwidth","ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,"egressBurst":1600000}`
	ingress = `{"name":"ingress","type":"bandwidth","ingressRate":8,"ingressBurst":8}`
	egress  = `{"name":"egress","type":"bandwidth","queueLength":100000,"egressRate":80000000000,"egressBurst":34359738344}`
	runtime = `{"name":"runtime","type":"bandwidth","latency":"5ms","runtimeConfig":{"bandwidth":{"ingressRate":8000000,"ingressBurst":4294967295,
		"egressRate":1000000,"egressBurst":800000}}}`
	none = `{"name":"none","type":"bandwidth","ingressRate":0,"ingressBurst":0,"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"ingressBurst":800000}}}`
)

// TestRole runs the suite over every documented feature: the reference's
// scenarios "both", "ingress off", "egress off", "runtime config", "static
// beats runtime", "DEL", "chained after ptp", and "bridge or ptp + bandwidth"
// of the integration tests. A configuration without limits changes nothing.
func TestRole(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "bandwidth",
		Confs: []rolestest.Conf{
			{
				Name: "both", JSON: both, Chain: bridge, Refused: map[string]any{"ingressRate": 1, "latency": "long"},
				Tamper: append(received(), sent()...),
			},
			{Name: "ingress", NoSweeps: true, JSON: ingress, Chain: bridge, Tamper: received()},
			{Name: "egress", NoSweeps: true, JSON: egress, Chain: bridge, Tamper: sent()},
			{Name: "runtime", NoSweeps: true, JSON: runtime, Chain: ptp, Tamper: append(received(), sent()...)},
			{Name: "none", NoSweeps: true, JSON: none, Chain: bridge, Repeatable: true},
		},
	}.Run(t)
}

// hostLink is the host's end of eth0.
func hostLink(t *testing.T, ns *netopstest.NS) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByIndex(ns.Link(t, "eth0").Attrs().ParentIndex)
	must(t, err)
	return l
}

// ifb is the ifb interface that limits what the container sends: the last
// interface of the result.
func ifb(t *testing.T, r *roles.Result) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(r.Interfaces[len(r.Interfaces)-1].Name)
	must(t, err)
	if l.Type() != "ifb" {
		t.Fatalf("%s is of kind %q", l.Attrs().Name, l.Type())
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tbf is a link's token bucket filter.
func tbf(t *testing.T, l netlink.Link) *netlink.Tbf {
	t.Helper()
	all, err := netlink.QdiscList(l)
	must(t, err)
	for _, q := range all {
		if t, ok := q.(*netlink.Tbf); ok && t.Parent == netlink.HANDLE_ROOT {
			return t
		}
	}
	t.Fatalf("%s has no token bucket: %v", l.Attrs().Name, all)
	return nil
}

// onHostLink and onIFB are changes to the interfaces of the two directions.
func onHostLink(name string, change func(*testing.T, netlink.Link)) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, ns *netopstest.NS, _ *roles.Result) {
		change(t, hostLink(t, ns))
	}}
}

func onIFB(name string, change func(*testing.T, netlink.Link)) rolestest.Tamper {
	return rolestest.Tamper{Name: name, Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		change(t, ifb(t, r))
	}}
}

// changed changes a token bucket filter.
func changed(change func(*netlink.Tbf)) func(*testing.T, netlink.Link) {
	return func(t *testing.T, l netlink.Link) {
		q := tbf(t, l)
		change(q)
		must(t, netlink.QdiscChange(q))
	}
}

func unlimited(t *testing.T, l netlink.Link) { must(t, netlink.QdiscDel(tbf(t, l))) }

// received are changes to the limit of what the container receives.
func received() []rolestest.Tamper {
	return []rolestest.Tamper{
		onHostLink("ingress rate", changed(func(q *netlink.Tbf) { q.Rate *= 2 })),
		onHostLink("ingress burst", changed(func(q *netlink.Tbf) { q.Buffer += q.Buffer / 2 })),
		onHostLink("ingress queue", changed(func(q *netlink.Tbf) { q.Limit++ })),
		onHostLink("ingress unlimited", unlimited),
	}
}

// sent are changes to the limit of what the container sends.
func sent() []rolestest.Tamper {
	return []rolestest.Tamper{
		onIFB("egress rate", changed(func(q *netlink.Tbf) { q.Rate /= 2 })),
		onIFB("egress burst", changed(func(q *netlink.Tbf) { q.Buffer += q.Buffer / 2 })),
		onIFB("egress queue", changed(func(q *netlink.Tbf) { q.Limit-- })),
		onIFB("egress unlimited", unlimited),
		onIFB("ifb down", func(t *testing.T, l netlink.Link) { must(t, netlink.LinkSetDown(l)) }),
		onIFB("ifb gone", func(t *testing.T, l netlink.Link) { must(t, netlink.LinkDel(l)) }),
		onHostLink("not redirected", func(t *testing.T, l netlink.Link) {
			must(t, netlink.FilterDel(&netlink.U32{FilterAttrs: netlink.FilterAttrs{
				LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 65000, Protocol: unix.ETH_P_ALL,
			}}))
		}),
		onHostLink("no clsact", func(t *testing.T, l netlink.Link) {
			must(t, netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
			}}))
		}),
	}
}
