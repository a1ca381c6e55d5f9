package netpolicy_test

import (
	"net/netip"
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
