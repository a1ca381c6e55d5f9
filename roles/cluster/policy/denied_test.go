package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/test/await"
)

// denyNode is a ClusterNetworkPolicy with some rules.
func denyNode(rules int) string {
	doc := "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: c}\nspec:\n  tier: Admin\n  priority: 1\n  subject: {namespaces: {}}\n  ingress:\n"
	for range rules {
		doc += "  - action: Deny\n    from: [{namespaces: {}}]\n    protocols: [{udp: {destinationPort: {number: 81}}}]\n"
	}
	return doc
}

// TestDenied: the agent names the pods and the policy of denied packets, one line for those of a connection, and counts the others.
func TestDenied(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.logDenied = true
	k, _ := n.open(&policy.Directory{Path: n.dir, Log: n.host.Log})
	one, web := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web"))
	n.flood(one, web)
	var found []control.Denied
	await.Until(t, func() bool {
		answer, err := control.DeniedAfter(t.Context(), n.host.Store, 0)
		if err != nil || !answer.IsOn {
			t.Fatal(answer, err)
		}
		found = answer.Denied
		first, repeated := false, false
		for _, d := range found {
			if d.Client == one.addresses[0] && d.Server == web.addresses[0] && d.Port == 81 {
				first, repeated = first || d.Packets == 1, repeated || d.Packets > 1
			}
		}
		return first && repeated
	}, func() string { return "no denied packets and repetitions" })
	for i, d := range found {
		switch {
		case d.Number != int64(i+1):
			t.Errorf("line %d has the number %d", i+1, d.Number)
		case d.Port == 80:
			t.Errorf("allowed: %+v", d)
		case d.Port == 81 && (d.Direction != "ingress" || d.ServerPod == "" || d.ClientPod == "" || d.Protocol != "UDP" || !strings.Contains(d.Why, "isolated by default/web")):
			t.Errorf("%+v", d)
		}
	}
	var w metrics.Writer
	k.WriteMetrics(t.Context(), &w)
	for _, want := range []string{
		`cnibox_policies{kind="NetworkPolicy"} 1`, "cnibox_policies_in_force 1", "cnibox_policies_saved_age_seconds 0", `cnibox_policy_logged_packets_total{pod="default/p1-3",direction="ingress"} `,
	} {
		if !strings.Contains(string(w.Bytes()), want) {
			t.Errorf("no %s in\n%s", want, w.Bytes())
		}
	}
	if denied, err := podfilter.DeniedPackets(t.Context()); err != nil || denied.Packets < 4 {
		t.Errorf("%+v %v", denied, err)
	}
	// Packets come while policies come and go.
	for _, doc := range []string{denyNode(2), denyNode(1), ""} {
		if doc == "" {
			if err := os.Remove(filepath.Join(n.dir, "cluster.yaml")); err != nil {
				t.Fatal(err)
			}
		} else {
			n.put("cluster.yaml", doc)
		}
		state := func() (count int) {
			s, err := control.State(t.Context(), n.host.Store)
			if err != nil {
				t.Fatal(err)
			}
			return len(s.Cluster)
		}
		want := min(1, len(doc))
		await.Until(t, func() bool { return state() == want }, func() string { return "the cluster policy is not known" })
		sent := n.sent.Load()
		await.Until(t, func() bool { return n.sent.Load() > sent+50 }, func() string { return "the flood ended" })
	}
	last := found[len(found)-1].Number
	answer, err := control.DeniedAfter(t.Context(), n.host.Store, last)
	if err != nil || len(answer.Denied) > 0 && answer.Denied[0].Number != last+1 {
		t.Errorf("%+v %v", answer, err)
	}
}
