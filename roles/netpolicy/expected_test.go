package netpolicy_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

// TestExpected: the kernel has the chains of a pod that is scheduled to this node before its ADD, at its ADD and after its DEL they are not
// made again, and they go with the pod.
func TestExpected(t *testing.T) {
	table, f := netpolicy.NewTable(), openFilter(t)
	table.ImplicitNamespaces = true
	table.OnNode = func(p *netpolicy.Pod) bool { return p.Node == "here" }
	put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"web"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":80}]}]}}`)
	pod := func(name, app, node string) *netpolicy.Pod {
		return &netpolicy.Pod{Namespace: "default", Name: name, UID: name, Node: node, Labels: map[string]string{"app": app}}
	}
	local := func(label string, pending bool, n int) netpolicy.Local {
		return netpolicy.Local{Label: "cnibox:" + label, Namespace: "default", Name: label, UID: label, Addresses: []netip.Addr{address4(n)}, Pending: pending}
	}
	put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"first"},"spec":{"podSelector":{"matchLabels":{"app":"first"}}}}`)
	table.PutPod(pod("first", "first", "here")) // so that the kernel has chains of IPv4
	first := local("first", false, 1)
	// handles returns the chain's name with its handle, which another chain of that name would not have.
	handles := func() string {
		ensure(t, f, table)
		out, err := exec.Command("nft", "-a", "list", "chains", "inet").Output()
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "chain policy_") {
				found = append(found, strings.TrimSpace(line))
			}
		}
		return strings.Join(found, "; ")
	}
	table.SetLocal([]netpolicy.Local{first})
	table.PutPod(pod("elsewhere", "web", "there"))
	if have := handles(); have != "" {
		t.Fatalf("a pod of another node has %s", have)
	}
	table.PutPod(pod("web", "web", "here"))
	before := handles()
	if before == "" {
		t.Fatal("no chain before ADD")
	}
	for i, all := range [][]netpolicy.Local{{first, local("web", true, 2)}, {first, local("web", false, 2)}, {first}} {
		table.SetLocal(all)
		if now := handles(); now != before {
			t.Errorf("after %s: %s, before: %s", []string{"ADD", "its record", "DEL"}[i], now, before)
		}
	}
	finished := pod("web", "web", "here")
	finished.Finished = true
	table.PutPod(finished)
	if now := handles(); now != "" {
		t.Errorf("a finished pod has %s", now)
	}
	table.PutPod(pod("web", "web", "here"))
	table.RemovePod("default", "web")
	if now := handles(); now != "" {
		t.Errorf("a deleted pod has %s", now)
	}
}

// TestSaved: a pod is saved once it is scheduled to this node, with the policies that select it.
func TestSaved(t *testing.T) {
	table := netpolicy.NewTable()
	table.OnNode = func(p *netpolicy.Pod) bool { return p.Node == "here" }
	for _, name := range []string{"web", "other"} {
		put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"%s"},"spec":{"podSelector":{"matchLabels":{"app":"%[1]s"}}}}`, name))
	}
	pod := netpolicy.Pod{Namespace: "default", Name: "web", UID: "1", Labels: map[string]string{"app": "web"}}
	table.PutPod(&pod)
	if s := table.Save(false); len(s.Policies)+len(s.Pods) > 0 {
		t.Errorf("saved for no pod: %v", s)
	}
	scheduled := pod
	scheduled.Node = "here"
	table.PutPod(&scheduled)
	if table.IsSaved {
		t.Error("a pod that was scheduled to this node is not saved again")
	}
	if s := table.Save(false); len(s.Pods) != 1 || len(s.Policies) != 1 || s.Policies[0].Name != "web" {
		t.Errorf("saved: %v", s)
	}
	if table.PutPod(&scheduled); !table.IsSaved {
		t.Error("the same pod is to be saved again")
	}
	if table.RemovePod("default", "web"); table.IsSaved {
		t.Error("a deleted pod stays saved")
	}
}
