package netpolicy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// dualStack returns a Table with pods of this node, a and b, that have addresses of both families.
func dualStack() *netpolicy.Table {
	table := netpolicy.NewTable()
	table.ImplicitNamespaces = true
	for i, name := range []string{"a", "b"} {
		table.PutPod(&netpolicy.Pod{Namespace: "default", Name: name, UID: "1", Labels: map[string]string{"app": name}, Addresses: []netip.Addr{address4(i), address6(i)}})
	}
	locals(table)
	return table
}

// ingressTo is a policy with some rules for the pods with a label.
func ingressTo(app, rules string) string {
	return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"to-%s"},"spec":{
		"podSelector":{"matchLabels":{"app":"%s"}},"ingress":[%s]}}`, app, app, rules)
}

// TestAnyAddress: chains for any address of one family and of both are different ones, also when a policy changes from one to another.
func TestAnyAddress(t *testing.T) {
	table := dualStack()
	for _, step := range []struct {
		rules string
		want  [2]int // rules for IPv4 and IPv6
	}{
		{`{}`, [2]int{1, 1}},
		{`{"from":[{"ipBlock":{"cidr":"0.0.0.0/0"}}]}`, [2]int{1, 0}},
		{`{"from":[{"ipBlock":{"cidr":"::/0"}}]}`, [2]int{0, 1}},
		{`{"from":[{"ipBlock":{"cidr":"::/0"}},{"ipBlock":{"cidr":"0.0.0.0/0"}}]}`, [2]int{1, 1}},
	} {
		put(t, table, ingressTo("a", step.rules))
		for name, c := range table.Ruleset().Chains {
			if have := [2]int{c.Count(false), c.Count(true)}; strings.HasPrefix(name, "policy_") && have != step.want {
				t.Errorf("%s: %d rules, want %d", step.rules, have, step.want)
			}
		}
	}
}

// TestCountedOnce: packets that a rule with several protocols and peers matches count once, those of both families together.
func TestCountedOnce(t *testing.T) {
	table := dualStack()
	put(t, table, ingressTo("a", `{"from":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":80,"protocol":"UDP"},{"port":80}]}`))
	e := netpolicy.NewExplainer(table)
	e.Counters = map[string][]podfilter.Counter{}
	for name, c := range table.Ruleset().Chains {
		if strings.HasPrefix(name, "peers_") {
			e.Counters[name+podfilter.Suffix(false)] = []podfilter.Counter{{Packets: 1}, {Packets: 2}}
			e.Counters[name+podfilter.Suffix(true)] = []podfilter.Counter{{Packets: 4}}
			if c.Count(false) != 2 || c.Count(true) != 1 {
				t.Fatal(c)
			}
		}
	}
	if all := e.Count(); len(all) != 1 || all[0].Packets != 7 {
		t.Errorf("%+v, want 7 packets", all)
	}
}
