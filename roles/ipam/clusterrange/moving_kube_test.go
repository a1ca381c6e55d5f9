//go:build kube

package clusterrange

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// startKube starts an API server for four nodes with exactly the rights of examples/kubernetes/ranges.yaml, which also
// needs get of nodes, and returns their kubeconfig.
func startKube(t *testing.T) (s *kubetest.Server, kubeconfig string) {
	t.Helper()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": kube.DefaultNamespace}})
	s.InstallNetworks(t)
	s.InstallIPAMClaims(t)
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "create", "patch"}},
		kubetest.Rule{APIGroups: []string{"whereabouts.cni.cncf.io"}, Resources: []string{"ippools"}, Verbs: []string{"list"}},
		kubetest.Rule{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"ipamclaims"}, Verbs: []string{"get"}},
		kubetest.Rule{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"ipamclaims/status"}, Verbs: []string{"patch"}})
	for i := range 4 {
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": fmt.Sprint("node-", i)}})
	}
	return s, s.Kubeconfig(t, s.Address, kubetest.Agent)
}

// TestMovingKube is TestMoving with a real API server.
func TestMovingKube(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	_, kubeconfig := startKube(t)
	playMoving(t, kubeconfig, 6*time.Second, nil)
}

// TestIPAMClaims: a pod gets the addresses of its IPAMClaim's status on every node. Without addresses there they are
// allocated and written. They are free when no pod uses them and the object is deleted.
func TestIPAMClaims(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, kubeconfig := startKube(t)
	const path = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/default/ipamclaims"
	create := func(name string, ips ...string) {
		t.Helper()
		s.Must(t, http.MethodPost, path, "", map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": map[string]any{"name": name}, "spec": map[string]any{"network": "lan", "interface": "net1"},
		})
		if len(ips) > 0 {
			s.Must(t, http.MethodPatch, path+"/"+name+"/status", "application/merge-patch+json", map[string]any{"status": map[string]any{"ips": ips}})
		}
	}
	type object struct {
		Status struct {
			IPs        []string
			OwnerPod   struct{ Name string }
			Conditions []struct{ Type, Status string }
		}
	}
	read := func(name string) (o object) {
		t.Helper()
		if err := json.Unmarshal(s.Must(t, http.MethodGet, path+"/"+name, "", nil), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	type nodeOf struct {
		*roles.Host
		stop func()
	}
	var nodes []nodeOf
	for i := range 3 {
		h := hostAt(t, t.TempDir())
		nodes = append(nodes, nodeOf{h, keep(t, h, kubeconfig, fmt.Sprint("node-", i))})
	}
	handler := func(claim string) *handler {
		t.Helper()
		a := handlerFor(t, "lan", `"range": "192.168.2.0/24", "ipRanges": [{"range": "fd00::/64"}]`)
		a.ipamClaim = claim
		return a
	}
	add := func(node int, claim, pod string) (ips []string, err error) {
		t.Helper()
		res, err := handler(claim).Add(t.Context(), nodes[node].Host, podRequest(t, "lan", pod, pod))
		if err == nil {
			for _, ip := range res.IPs {
				ips = append(ips, ip.Address.String())
			}
		}
		return ips, err
	}
	del := func(node int, claim, pod string) {
		t.Helper()
		if err := handler(claim).Del(t.Context(), nodes[node].Host, podRequest(t, "lan", pod, pod)); err != nil {
			t.Fatal(err)
		}
	}
	must := func(node int, claim, pod string) []string {
		t.Helper()
		var ips []string
		var err error
		await.Until(t, func() bool { ips, err = add(node, claim, pod); return err == nil }, func() string { return fmt.Sprint(err) })
		return ips
	}

	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", "", map[string]any{"metadata": map[string]any{"name": "default"}})
	s.Kubectl(t, "apply", "-f", "../../../examples/kubernetes/ipamclaim.yaml")

	create("vm")
	ips := must(0, "vm", "launcher-1")
	if o := read("vm"); len(ips) != 2 || !slices.Equal(o.Status.IPs, ips) || o.Status.OwnerPod.Name != "launcher-1" || len(o.Status.Conditions) != 1 || o.Status.Conditions[0].Status != "True" {
		t.Errorf("ADD has %v, the object %+v", ips, o)
	}
	if got := must(1, "vm", "launcher-2"); !slices.Equal(got, ips) || read("vm").Status.OwnerPod.Name != "launcher-2" {
		t.Errorf("the second node has %v, the first %v: %+v", got, ips, read("vm"))
	}
	if _, err := add(2, "vm", "launcher-3"); err == nil || !strings.Contains(err.Error(), "node-0 and node-1") {
		t.Errorf("a third node: %v", err)
	}
	given := []string{"192.168.2.77/24", "fd00::77/64"}
	create("given", given[1], given[0])
	if got := must(2, "given", "launcher-4"); !slices.Equal(got, given) {
		t.Errorf("%v, want those of the object", got)
	}
	create("taken", given...)
	create("outside", "10.0.0.1/24", "fd00::78/64")
	for claim, want := range map[string]string{"missing": "default/missing does not exist", "taken": given[0][:12] + " is of another reservation", "outside": "10.0.0.1/24"} {
		if _, err := add(0, claim, "other"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("claim %s: %v", claim, err)
		}
	}

	// An object that is deleted while a pod has its addresses, and one that is deleted later, while no agent runs.
	s.Must(t, http.MethodDelete, path+"/given", "", nil)
	del(2, "given", "launcher-4")
	if got := must(1, "taken", "launcher-5"); !slices.Equal(got, given) {
		t.Errorf("%v, want the addresses of the deleted object", got)
	}
	del(0, "vm", "launcher-1")
	del(1, "vm", "launcher-2")
	if got := must(2, "vm", "launcher-6"); !slices.Equal(got, ips) {
		t.Errorf("%v, want %v, which the object has", got, ips)
	}
	del(2, "vm", "launcher-6")
	registered := func() bool {
		found := false
		r, err := openRegistry(kubeconfig, "node-3")
		if err == nil {
			err = r.Pages().List(t.Context(), func(_ string, raw []byte, _ string) { found = found || strings.Contains(string(raw), "default/vm") })
		}
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	nodes[2].stop()
	if !registered() {
		t.Error("freed while the object exists")
	}
	s.Must(t, http.MethodDelete, path+"/vm", "", nil)
	keep(t, nodes[2].Host, kubeconfig, "node-2")
	await.Until(t, func() bool { return !registered() }, func() string { return "not freed" })
}
