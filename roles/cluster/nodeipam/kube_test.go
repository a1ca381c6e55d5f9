//go:build kube

package nodeipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/nodeipam"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// With the rights of the example, Nodes that exist and Nodes that are made later get blocks, deleted Nodes release
// theirs, and Nodes that cannot be repaired are reported.
func TestNodes(t *testing.T) {
	w := newWorld(t)
	w.create("a")
	w.create("kept", "10.244.1.0/24")
	w.create("outside", "10.9.0.0/24")
	w.Must(t, http.MethodPost, nodesPath, "", map[string]any{"metadata": map[string]any{"name": "leaving", "finalizers": []string{"example.com/test"}}})
	w.remove("leaving")
	r := w.start("", "-cluster-cidr=10.244.0.0/22", "-service-cluster-ip-range=10.244.2.0/24")
	if got := w.assigned("a"); got != "10.244.0.0/24" {
		t.Errorf("a has %s", got)
	}
	w.create("b")
	if got := w.assigned("b"); got != "10.244.3.0/24" {
		t.Errorf("b has %s", got)
	}
	w.create("c")
	w.Must(t, http.MethodPatch, nodesPath+"/c/status", rest.StrategicMergePatch, map[string]any{"status": map[string]any{
		"conditions": []any{map[string]string{"type": "Ready", "status": "False"}},
	}})
	w.condition("c", "CIDRNotAvailable")
	await.Until(t, func() bool { return slices.Equal(w.events("c"), []string{"CIDRNotAvailable"}) }, func() string { return fmt.Sprintf("events %v", w.events("c")) })
	s := r.until("starved node", func(s status) bool { return len(s.Faults) == 2 })
	if s.Nodes != 6 || s.Waiting != 2 || s.Networks[0].Used != 4 || s.Faults[0].Node != "c" || s.Faults[1].Node != "outside" || !strings.Contains(s.Faults[1].Error, "10.9.0.0/24 is outside") {
		t.Errorf("%+v", s)
	}
	if o := w.get("leaving"); o.Metadata.DeletionTimestamp == "" || len(o.Spec.PodCIDRs) > 0 {
		t.Errorf("a Node that is being deleted has %v", o.Spec.PodCIDRs)
	}
	w.Must(t, http.MethodPatch, nodesPath+"/leaving", rest.MergePatch, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	w.remove("kept")
	if got := w.assigned("c"); got != "10.244.1.0/24" {
		t.Errorf("c has %s", got)
	}
	w.condition("c", "")
	// A Node that is made again gets another block. The server is down meanwhile, and its clients miss the change.
	w.StopAPI()
	r.until("error", func(s status) bool { return s.Error != "" })
	if _, err := r.status(); err == nil || !strings.Contains(err.Error(), "does not work") {
		t.Errorf("status of a daemon without a server: %v", err)
	}
	if err := w.StartAPI(); err != nil {
		t.Fatal(err)
	}
	w.remove("a")
	w.create("d")
	if got := w.assigned("d"); got != "10.244.0.0/24" {
		t.Errorf("d has %s", got)
	}
	r.until("end of the error", func(s status) bool { return s.Error == "" && s.Leader && s.Waiting == 0 })
	w.assignedAll(4)
	// A later leader removes the condition that the former one left.
	r.stop()
	w.Must(t, http.MethodPatch, nodesPath+"/c/status", rest.StrategicMergePatch, map[string]any{"status": map[string]any{
		"conditions": []any{map[string]string{"type": "cnibox.io/PodNetwork", "status": "False", "reason": "CIDRNotAvailable"}},
	}})
	w.start("", "-cluster-cidr=10.244.0.0/22").leads()
	w.condition("c", "")
}

// Both families are assigned together.
func TestDual(t *testing.T) {
	w := newWorld(t)
	w.start("", "-cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "-node-cidr-mask-size-ipv4=25")
	w.create("a")
	w.create("b")
	if a, b := w.assigned("a"), w.assigned("b"); a != "10.244.0.0/25,fd00:10:244::/64" || b != "10.244.0.128/25,fd00:10:244:1::/64" {
		t.Errorf("a has %s, b has %s", a, b)
	}
}

// TestControllerManager makes the same changes of two clusters. In one kube-controller-manager assigns pod networks.
// Every node gets the same ones, also in the registries without an API server.
func TestControllerManager(t *testing.T) {
	t.Run("kube", func(t *testing.T) { compareWithManager(t, newWorld(t)) })
	for _, kind := range []string{"etcd", "dir"} {
		t.Run(kind, func(t *testing.T) { compareWithManager(t, newRegistry(t, kind)) })
	}
}

func compareWithManager(t *testing.T, ours *world) {
	theirs := newWorld(t)
	flags := []string{"--cluster-cidr=10.244.0.0/17,fd00:10:244::/57", "--service-cluster-ip-range=10.244.16.0/22", "--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64"}
	for _, w := range []*world{ours, theirs} {
		w.create("first", "10.244.2.0/24", "fd00:10:244:5::/64")
	}
	theirs.StartManager(t, append(flags, "--allocate-node-cidrs", "--controllers=node-ipam-controller")...)
	ours.start("", flags...)
	random := rand.New(rand.NewPCG(1, 2))
	var live []string
	for i := range 120 {
		if len(live) > 40 || len(live) > 0 && random.IntN(3) == 0 {
			at := random.IntN(len(live))
			for _, w := range []*world{ours, theirs} {
				w.remove(live[at])
			}
			live = slices.Delete(live, at, at+1)
			continue
		}
		name := fmt.Sprintf("node-%d", i)
		for _, w := range []*world{ours, theirs} {
			w.create(name)
		}
		if got, want := ours.assigned(name), theirs.assigned(name); got != want {
			t.Fatalf("%s has %s, and kube-controller-manager assigned %s", name, got, want)
		}
		live = append(live, name)
	}
}

// TestCidrset compares with kube-controller-manager's allocator. They differ only in blocks with several holders,
// which it releases at once.
func TestCidrset(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		network string
		length  int
	}{{"10.0.0.0/16", 24}, {"10.128.0.0/9", 20}, {"10.1.2.0/24", 24}, {"fd00:1::/48", 64}, {"fd00:1:2:10::/60", 68}, {"fd00::/120", 128}} {
		ours := nodeipam.NewBlockScript(t, c.network, c.length)
		for range 3000 {
			ours.Step(random)
		}
		cmd := exec.Command(kubetest.Built("cidrset"), c.network, fmt.Sprint(c.length))
		cmd.Stdin = strings.NewReader(strings.Join(ours.Ops, "\n") + "\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for i, want := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if ours.Results[i] != want {
				t.Fatalf("%s, line %d, %s: got %s, want %s", c.network, i, ours.Ops[i], ours.Results[i], want)
			}
		}
	}
}

// The example's Deployment has the flags that the daemon knows.
func TestExample(t *testing.T) {
	w := newWorld(t)
	var d struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	w.decode(w.Must(t, http.MethodGet, "/apis/apps/v1/namespaces/kube-system/deployments/cnibox-nodeipam", "", nil), &d)
	args := slices.DeleteFunc(d.Spec.Template.Spec.Containers[0].Args, func(a string) bool { return strings.HasPrefix(a, "--socket") })
	w.start("", args...).leads()
}
