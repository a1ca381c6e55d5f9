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

// TestLarge: policies with more rules than one transaction can have are put in force, and taken back.
func TestLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	f, table := openFilter(t), netpolicy.NewTable()
	address := netip.MustParseAddr("10.0.0.5")
	table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "web-0", UID: "1", Addresses: []netip.Addr{address}})
	table.SetLocal([]netpolicy.Local{{Label: "cnibox:web-0", Namespace: "default", Name: "web-0", UID: "1", Addresses: []netip.Addr{address}}})
	ensure(t, f, table)
	const policies, blocks = 200, 250
	for i := range policies {
		var rules []string
		for j := range blocks {
			rules = append(rules, fmt.Sprintf(`{"from":[{"ipBlock":{"cidr":"10.%d.%d.0/24"}}],"ports":[{"port":80}]}`, i, j))
		}
		put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p%d"},"spec":{
			"podSelector":{},"ingress":[%s]}}`, i, strings.Join(rules, ",")))
	}
	ensure(t, f, table)
	rules := 0
	for name, c := range table.Ruleset().Chains {
		if rules >= 10*blocks { // nft takes long
			break
		}
		if !strings.HasPrefix(name, "policy_") {
			continue
		}
		out, err := exec.Command("nft", "list", "chain", "inet", "cnibox_policy", name+podfilter.Suffix(false)).Output()
		if n := strings.Count(string(out), "ct original"); err != nil || n != blocks {
			t.Errorf("chain %s has %d of %d rules, %v", name, n, len(c.Rules), err)
		}
		rules += len(c.Rules)
	}
	for i := range policies {
		table.RemovePolicy("default", fmt.Sprint("p", i))
	}
	ensure(t, f, table)
	if have := handles(t); strings.Contains(have, "chain policy_") || strings.Contains(have, "chain pods_") || strings.Contains(have, " : goto") {
		t.Errorf("rules of removed policies stayed: %s", have)
	}
}

// TestManyMembers: more changed members of sets than one transaction can have are changed.
func TestManyMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	f, table := openFilter(t), netpolicy.NewTable()
	address := netip.MustParseAddr("192.0.2.5")
	table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "web-0", UID: "1", Addresses: []netip.Addr{address}})
	table.SetLocal([]netpolicy.Local{{Label: "cnibox:web-0", Namespace: "default", Name: "web-0", UID: "1", Addresses: []netip.Addr{address}}})
	const pods = 120_000
	for i := range pods {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		table.PutPod(&netpolicy.Pod{Namespace: "many", Name: fmt.Sprint("p", i), UID: fmt.Sprint(i), Addresses: []netip.Addr{a}})
	}
	for _, team := range []string{"a", "b"} {
		put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"%s"},"spec":{
			"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"%s"}}}]}]}}`, team, team))
	}
	for _, team := range []string{"a", "b", "a"} {
		table.PutNamespace("many", map[string]string{"team": team})
		ensure(t, f, table)
		ensure(t, openFilter(t), table) // it compares all members
		out, err := exec.Command("nft", "list", "map", "inet", "cnibox_policy", "pod_ingress4").Output()
		if err != nil || !strings.Contains(string(out), "goto pods_") {
			t.Errorf("%v: %s", err, out)
		}
	}
}
