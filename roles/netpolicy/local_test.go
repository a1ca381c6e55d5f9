package netpolicy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// TestReplacedPod: while a pod replaces one of its name, both have attachments. The address of the old one is not a peer's, and it is
// denied everything, in each order of the attachments.
func TestReplacedPod(t *testing.T) {
	server, before, after := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	attachments := []netpolicy.Local{
		{Label: "a", Namespace: "default", Name: "db-0", UID: "before", Addresses: []netip.Addr{before}},
		{Label: "b", Namespace: "default", Name: "db-0", UID: "after", Addresses: []netip.Addr{after}},
		{Label: "c", Namespace: "default", Name: "web", UID: "web", Addresses: []netip.Addr{server}},
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		table := netpolicy.NewTable()
		put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{
			"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}]}]}}`)
		table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "web", UID: "web", Labels: map[string]string{"app": "web"}})
		table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "db-0", UID: "after", Labels: map[string]string{"app": "db"}})
		var locals []netpolicy.Local
		for _, i := range order {
			locals = append(locals, attachments[i])
		}
		table.SetLocal(locals)
		rules := table.Ruleset()
		if p := rules.Pods[before]; p.Ingress != podfilter.Deny || p.Egress != podfilter.Deny {
			t.Errorf("order %v: the replaced pod has %+v", order, p)
		}
		for _, s := range rules.Sets {
			if s.Kind == podfilter.Addresses && !s.V6 && (s.Has(podfilter.Key(before, 0)) || !s.Has(podfilter.Key(after, 0))) {
				t.Errorf("order %v: the peers have the replaced pod %v, the new one %v", order, s.Has(podfilter.Key(before, 0)), s.Has(podfilter.Key(after, 0)))
			}
		}
	}
}

// TestGiven: a peer has the addresses that its node has given to it before the source tells them, and in place of those of an earlier
// container, unless another pod or another node is meant.
func TestGiven(t *testing.T) {
	server, early, former := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	here, there := netpolicy.NewTable(), netpolicy.NewTable()
	labels := map[string]string{"app": "db"}
	for _, table := range []*netpolicy.Table{here, there} {
		table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "web", UID: "web", Node: "there", Labels: map[string]string{"app": "web"}})
		table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "db-0", UID: "db", Node: "here", Labels: labels})
	}
	here.SetLocal([]netpolicy.Local{{Label: "b", Namespace: "default", Name: "db-0", UID: "db", Addresses: []netip.Addr{early}}})
	there.SetLocal([]netpolicy.Local{{Label: "c", Namespace: "default", Name: "web", UID: "web", Addresses: []netip.Addr{server}}})
	if got := here.Given(); len(got) > 0 {
		t.Errorf("without policies: %v", got)
	}
	for _, table := range []*netpolicy.Table{here, there} {
		put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{
			"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}]}]}}`)
	}
	peers := func(when string, want ...netip.Addr) {
		t.Helper()
		for name, table := range map[string]*netpolicy.Table{"kept": there, "transferred": transferred(t, there)} {
			for _, s := range table.Ruleset().Sets {
				for _, a := range []netip.Addr{early, former} {
					if has := s.Has(podfilter.Key(a, 0)); s.Kind == podfilter.Addresses && !s.V6 && has != slices.Contains(want, a) {
						t.Errorf("%s, %s: the peers have %s: %t", when, name, a, has)
					}
				}
			}
		}
	}
	peers("before")
	given := here.Given()
	if len(given) != 1 || given["default/db-0"].UID != "db" {
		t.Fatalf("%+v", given)
	}
	there.PutGiven("elsewhere", given)
	peers("another node says it")
	there.PutGiven("here", map[string]netpolicy.Given{"default/db-0": {UID: "other", Addresses: []netip.Addr{early}}})
	peers("of another pod")
	// What another program wrote there: the kernel would refuse an address that is none.
	there.PutGiven("here", map[string]netpolicy.Given{"default/db-0": {UID: "db", Addresses: []netip.Addr{{}, netip.AddrFrom16(early.As16())}}})
	peers("mapped, and none", early)
	for _, s := range there.Ruleset().Sets {
		if s.Has(podfilter.Key(netip.Addr{}, 0)) {
			t.Errorf("%s has an address that is none", s.Name)
		}
	}
	there.PutGiven("here", given)
	peers("given", early)
	there.PutPod(&netpolicy.Pod{Namespace: "default", Name: "db-0", UID: "db", Node: "here", Labels: labels, Addresses: []netip.Addr{former}})
	peers("the status has the former address", early)
	there.PutPod(&netpolicy.Pod{Namespace: "default", Name: "db-0", UID: "db", Node: "here", Labels: labels, Addresses: []netip.Addr{early}})
	here.PutPod(&netpolicy.Pod{Namespace: "default", Name: "db-0", UID: "db", Node: "here", Labels: labels, Addresses: []netip.Addr{early}})
	if got := here.Given(); len(got) > 0 {
		t.Errorf("the status has it: %v", got)
	}
	there.PutGiven("here", nil)
	peers("the status has the address", early)
	there.RemovePod("default", "db-0")
	there.PutGiven("here", given)
	peers("without the pod")
}
