package policy_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/test/await"
)

// TestFlood: clients on the same bridge and in another network send to a pod's addresses from before its ADD on. No datagram
// arrives that the policy forbids, and those arrive that it allows. Without an agent both arrive, so the flood is there.
func TestFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, enforced := range []bool{true, false} {
		t.Run(map[bool]string{true: "policy", false: "no policy"}[enforced], func(t *testing.T) {
			n := newNode(t)
			n.put("web.yaml", onlyPort80)
			if enforced {
				n.start()
			}
			near, far, web := n.add(n.pod(1, 2, "")), n.add(n.pod(2, 2, "")), n.pod(1, 3, "app=web")
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
			allowed, denied := n.sink(web, 80), n.sink(web, 81)
			n.flood(near, web)
			n.flood(far, web)
			n.add(web)
			n.more(allowed, "the allowed port")
			if !enforced {
				n.more(denied, "the denied port without a policy")
				return
			}
			n.none(denied, "after ADD")
			// The same address again, at once, by a pod that no policy selects, and back.
			n.del(web)
			n.none(denied, "during DEL")
			other := n.pod(1, 3, "app=other")
			open := n.sink(other, 81)
			n.add(other)
			n.more(open, "a pod without a policy")
			n.del(other)
			again := n.pod(1, 3, "app=web")
			denied = n.sink(again, 81)
			allowed = n.sink(again, 80)
			n.add(again)
			n.more(allowed, "the allowed port of the second pod")
			n.none(denied, "the second pod")
			// A policy that another program's flush does not open.
			run(t, "nft flush table inet cnibox_policy")
			n.more(allowed, "after nft flush table")
			n.none(denied, "after nft flush table")
			run(t, "nft flush map inet cnibox_policy pod_ingress4")
			awaitRules(t, "10.1.0.3")
			n.more(allowed, "after nft flush map")
		})
	}
}

func run(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// awaitRules waits until the kernel has an element of a pod.
func awaitRules(t *testing.T, address string) {
	t.Helper()
	await.Until(t, func() bool {
		out := listed(t, "pod_ingress4")
		return strings.Contains(out, address) && !strings.Contains(out, address+" : goto deny")
	}, func() string { return "no rules of " + address })
}

var comment = regexp.MustCompile(` comment "[^"]*"`)

// listed lists a map of pods without comments.
func listed(t *testing.T, name string) string {
	t.Helper()
	out, _ := exec.Command("nft", "list", "map", "inet", "cnibox_policy", name).Output() // it may not exist yet
	return comment.ReplaceAllString(string(out), "")
}

// TestRepaired: after 'nft flush ruleset' the agent makes the rules again.
func TestRepaired(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	near, web := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web"))
	run(t, "nft flush ruleset")
	awaitRules(t, "10.1.0.3")
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(allowed, "the allowed port")
	n.none(denied, "after nft flush ruleset")
	// A policy that is removed, and comes back, for a pod that runs.
	run(t, "rm "+n.dir+"/web.yaml")
	n.more(denied, "without the policy")
	n.put("web.yaml", onlyPort80)
	awaitRules(t, "10.1.0.3")
	n.more(allowed, "with the policy again") // those that were on their way have arrived
	arrived := denied[0].Load()
	n.more(allowed, "with the policy again")
	if denied[0].Load() != arrived {
		t.Error("the policy that came back is not in force")
	}
	// An invalid file leaves the others in force.
	n.put("bad.yaml", "kind: NetworkPolicy")
	n.more(allowed, "with an invalid file")
	if denied[0].Load() != arrived {
		t.Error("an invalid file opened the pod")
	}
}

// TestAfterADD: a policy that comes right after the ADD of a pod that none selected is in force before the next complete comparison.
func TestAfterADD(t *testing.T) {
	n := newNode(t)
	n.start()
	n.add(n.pod(1, 3, "app=web"))
	n.put("web.yaml", onlyPort80)
	deadline := time.Now().Add(policy.ResyncTime / 2)
	awaitRules(t, "10.1.0.3")
	if time.Now().After(deadline) {
		t.Error("the complete comparison made the rules")
	}
}

// TestAbsent: without the agent the saved policies decide. A node whose agent never read the policies refuses ADD.
func TestAbsent(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near, web := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web"))
	stop()
	second := n.pod(1, 4, "app=web")
	allowed, denied := n.sink(second, 80), n.sink(second, 81)
	n.flood(near, second)
	n.add(second)
	n.more(allowed, "the allowed port without the agent")
	n.none(denied, "without the agent")
	n.del(web)

	// After a boot the kernel has no table. The pods are denied until the agent runs.
	run(t, "nft flush ruleset")
	third := n.pod(1, 5, "app=web")
	denied, allowed = n.sink(third, 81), n.sink(third, 80)
	n.flood(near, third)
	n.add(third)
	n.none(allowed, "without the agent's chains")
	n.start()
	n.more(allowed, "after the agent has started")
	n.none(denied, "after a boot")

	m := newNode(t)
	if err := os.WriteFile(enforce.SavedPath(m.host.Store), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := m.Fail(m.pod(2, 2, "").call, 11); !strings.Contains(a.Stdout, "'cnibox agent' must run with -policy") {
		t.Error(a.Stdout)
	}
}

// TestCluster: a ClusterNetworkPolicy is in force before the first packet of a pod that no NetworkPolicy selects, and without the
// agent.
func TestCluster(t *testing.T) {
	n := newNode(t)
	n.put("cluster.yaml", `apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: only-80}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
  ingress:
  - {action: Pass, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 80}}}]}
  - {action: Deny, from: [{namespaces: {}}]}
`)
	stop := n.start()
	near, web := n.add(n.pod(1, 2, "")), n.pod(1, 3, "app=web")
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.add(web)
	n.more(allowed, "the passed port")
	n.none(denied, "after ADD")
	n.put("web.yaml", onlyPort80)
	n.more(allowed, "with a NetworkPolicy behind it")
	state, err := control.State(t.Context(), n.host.Store)
	if err != nil || len(state.Cluster) != 1 || len(state.Local) != 2 {
		t.Errorf("the agent's state: %+v, %v", state, err)
	}
	stop()
	second := n.pod(1, 4, "app=web")
	allowed, denied = n.sink(second, 80), n.sink(second, 81)
	n.flood(near, second)
	n.add(second)
	n.more(allowed, "the passed port without the agent")
	n.none(denied, "without the agent")
}
