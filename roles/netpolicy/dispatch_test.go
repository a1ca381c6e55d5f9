package netpolicy_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// putAllowing puts a policy for all pods of a namespace that allows some ports, as JSON, from everywhere.
func putAllowing(t *testing.T, table *netpolicy.Table, name, ports string) {
	t.Helper()
	put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":"default"},"spec":{"podSelector":{},"ingress":[{"ports":[%s]}]}}`, name, ports))
}

// onePod returns a Table with one pod of this node.
func onePod() *netpolicy.Table {
	table, addresses := netpolicy.NewTable(), []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}
	table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "web", UID: "1", Addresses: addresses})
	table.SetLocal([]netpolicy.Local{{Label: "cnibox:web", Namespace: "default", Name: "web", UID: "1", Addresses: addresses}})
	return table
}

// TestDispatch counts the rules of a pod's chain: they do not grow with policies of ports by number, unless their ranges overlap in many ways.
func TestDispatch(t *testing.T) {
	chain := func(table *netpolicy.Table) *podfilter.Chain {
		r := table.Ruleset()
		return r.Chains[r.Pods[netip.MustParseAddr("10.0.0.5")].Ingress]
	}
	const tail = 5 // of a pod that is isolated
	table := onePod()
	for n, want := range []int{1 + tail, 2 + tail, 2 + tail, 2 + tail, 2 + tail} {
		putAllowing(t, table, fmt.Sprint("p", n), fmt.Sprintf(`{"port":%d},{"port":%d}`, 100+n, 200+n))
		if have := chain(table); len(have.Rules) != want {
			t.Errorf("%d policies: %s", n+1, have)
		}
	}
	for n, ports := range []string{`{"port":300,"endPort":301}`, `{"port":"web"}`, `{}`, `{"port":300,"protocol":"UDP"}`} {
		putAllowing(t, table, fmt.Sprint("q", n), ports)
	}
	have := chain(table)
	if want := 2 + 2 + 2 + tail; len(have.Rules) != want { // the maps of TCP and UDP, and two policies that are in none
		t.Errorf("%d rules, want %d: %s", len(have.Rules), want, have)
	}
	putAllowing(t, table, "r0", `{"port":1000,"endPort":1009}`)
	putAllowing(t, table, "r1", `{"port":1005,"endPort":65535},{"port":1010}`)
	explainer := netpolicy.NewExplainer(table)
	for port, policy := range map[uint16]string{101: "p1", 204: "p4", 301: "q0", 999: "q2", 1000: "r0", 1005: "r0", 1009: "r0", 1010: "r1", 65535: "r1"} {
		e := explainer.Explain(netpolicy.Flow{Client: netip.MustParseAddr("10.0.0.9"), Server: netip.MustParseAddr("10.0.0.5"), Protocol: "TCP", Port: port})
		if !e.Allowed || e.Verdicts[0].Policy != "default/"+policy {
			t.Errorf("port %d: %+v", port, e)
		}
	}
	for n := range 20 { // any two of them share other ports
		putAllowing(t, table, fmt.Sprint("s", n), fmt.Sprintf(`{"port":%d,"endPort":%d}`, 2000+n, 3000+n))
	}
	if have, want := chain(table), 2+2+2+20+3+tail; len(have.Rules) != want { // policies with ranges are in no map
		t.Errorf("%d rules, want %d: %s", len(have.Rules), want, have)
	}
}

// TestDispatchRemoved: the maps go with the chains that their elements name.
func TestDispatchRemoved(t *testing.T) {
	table, f := onePod(), openFilter(t)
	list := func() string {
		t.Helper()
		out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	ensure(t, f, table)
	before := list()
	for n := range 6 {
		putAllowing(t, table, fmt.Sprint("p", n), fmt.Sprintf(`{"port":%d},{"port":80}`, 100+n))
	}
	ensure(t, f, table)
	if have := list(); !strings.Contains(have, "map "+podfilter.MapPrefix) || !strings.Contains(have, "chain ports_") {
		t.Errorf("no map: %s", have)
	}
	for n := range 6 {
		table.RemovePolicy("default", fmt.Sprint("p", n))
	}
	ensure(t, f, table)
	if have := list(); have != before {
		t.Errorf("left:\n%s\nwant\n%s", have, before)
	}
}
