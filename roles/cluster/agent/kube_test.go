//go:build kube

package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// TestKube: the registry is the Node objects of a real API server. Annotations are removed. A Node
// is made again, gets another pod network, and is deleted while an agent is down. The API server
// goes down. A node of flannel takes part.
func TestKube(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	must(t, err)
	t.Cleanup(s.Stop)
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		kubetest.Rule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list"}})
	const nodes, patch, prefix = "/api/v1/nodes", "application/merge-patch+json", "flannel.alpha.coreos.com/"
	create := func(name, subnet string, annotations map[string]string) {
		t.Helper()
		s.Must(t, http.MethodPost, nodes, "", map[string]any{
			"metadata": map[string]any{"name": name, "annotations": annotations},
			"spec":     map[string]any{"podCIDR": subnet, "podCIDRs": []string{subnet}},
		})
	}
	annotations := func(name string) map[string]string {
		t.Helper()
		var o struct {
			Metadata struct{ Annotations map[string]string }
		}
		must(t, json.Unmarshal(s.Must(t, http.MethodGet, nodes+"/"+name, "", nil), &o))
		return o.Metadata.Annotations
	}
	w := newWorld(t, 3, vxlan)
	conf := filepath.Join(t.TempDir(), "net-conf.json")
	must(t, os.WriteFile(conf, []byte(vxlan), 0o600))
	w.registry = []string{"-kube-subnet-mgr", "-kubeconfig-file=" + s.Kubeconfig(t, s.Address, kubetest.Agent), "-net-config-path=" + conf}
	for i, n := range w.nodes {
		n.forward(s.Address)
		if i > 0 {
			create(n.name, []string{"", "10.244.1.0/24", "10.244.2.0/24"}[i], nil)
		}
	}
	// The first node has no pod network yet, so its agent waits.
	n := w.nodes[0]
	s.Must(t, http.MethodPost, nodes, "", map[string]any{"metadata": map[string]any{"name": n.name}})
	n.launch()
	w.within(func() bool { _, err := n.verb("agent status", nil); return err == nil }, func() string { return "no status" })
	n.until("waiting", func(a answer) bool { return !a.Ready && strings.Contains(a.Reason, "no pod network assigned") })
	s.Must(t, http.MethodPatch, nodes+"/"+n.name, patch, map[string]any{"spec": map[string]any{"podCIDR": "10.244.0.0/24", "podCIDRs": []string{"10.244.0.0/24"}}})
	n.until("the pod network", func(a answer) bool { return a.Ready })
	pods := []*pod{n.attach()}
	// A policy selects a pod of the second node only.
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "default"}}, http.StatusConflict)
	s.Must(t, http.MethodPost, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "", map[string]any{
		"metadata": map[string]any{"name": "deny"}, "spec": map[string]any{"podSelector": map[string]any{"matchLabels": map[string]string{"app": "web"}}},
	})
	for i, app := range []string{"", "web", "db"} {
		s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", "", map[string]any{
			"metadata": map[string]any{"name": w.nodes[i].name, "labels": map[string]string{"app": app}},
			"spec":     map[string]any{"nodeName": w.nodes[i].name, "containers": []map[string]string{{"name": "c", "image": "i"}}},
		})
	}
	for _, n := range w.nodes[1:] {
		n.start()
		pods = append(pods, n.attach())
	}
	w.reach(false, pods...)
	const warning = "cnibox does not enforce them"
	w.within(func() bool { return strings.Contains(w.nodes[1].log.String(), "policies=default/deny") }, func() string { return "no warning of the policy" })
	if log := w.nodes[1].log.String() + w.nodes[2].log.String() + n.log.String(); strings.Count(log, warning) != 1 {
		t.Errorf("the policy of one node is not named once:\n%s", log)
	}
	if a := annotations(n.name); a[prefix+"kube-subnet-manager"] != "true" || a[prefix+"backend-type"] != "vxlan" || a[prefix+"public-ip"] != "172.17.8.101" {
		t.Errorf("annotations %v", a)
	}

	// Annotations are removed. The agent restores them with the same VTEP.
	before := annotations(n.name)
	s.Must(t, http.MethodPatch, nodes+"/"+n.name, patch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{prefix + "backend-data": nil, prefix + "kube-subnet-manager": nil}}})
	w.within(func() bool { return annotations(n.name)[prefix+"backend-data"] == before[prefix+"backend-data"] }, func() string { return "the annotations do not come back" })

	// The Node is deleted and made again with another pod network.
	s.Must(t, http.MethodDelete, nodes+"/"+n.name, "", nil)
	w.nodes[1].until("its absence", func(a answer) bool { return a.Peers == store.OverlayPeers{Wanted: 1, Programmed: 1} })
	create(n.name, "10.244.7.0/24", nil)
	n.until("the new pod network", func(a answer) bool { return a.Ready && a.PodCIDRs[0].String() == "10.244.7.0/24" })
	for _, n := range w.nodes {
		n.until("two peers", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	}
	pods[0] = n.attachAgain(pods[0])
	w.reach(false, pods...)

	// A node of flannel joins.
	create("flannel", "10.244.9.0/24", map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": "172.17.8.250",
		prefix + "backend-data": `{"VNI":1,"VtepMAC":"02:00:00:00:00:fb"}`,
	})
	n.until("three peers", func(a answer) bool { return a.Peers == store.OverlayPeers{Wanted: 3, Programmed: 3} })

	// The API server is down. A node is deleted while an agent is down.
	s.StopAPI()
	n.until("the loss", func(a answer) bool { return a.Ready && a.RegistryError != "" })
	n.ip("link del flannel.1")
	t.Logf("repaired without an API server within %s", w.reach(false, pods...))
	n.kill()
	must(t, s.StartAPI())
	s.Must(t, http.MethodDelete, nodes+"/flannel", "", nil)
	n.start()
	n.until("two peers again", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
	w.reach(false, pods...)
}

// TestKubeManifests: with the arguments, the configuration and the rights of examples/kubernetes the agent
// becomes ready, installs the network, and can lease blocks of cluster-wide ranges. Without any one of the
// rights of its roles it does not, or reports that it cannot read the registry.
func TestKubeManifests(t *testing.T) {
	runtime.LockOSThread() // the server ends with the thread that started it
	defer runtime.UnlockOSThread()
	s, err := kubetest.Start(kubetest.DebianEtcd)
	must(t, err)
	t.Cleanup(s.Stop)
	examples, err := filepath.Abs("../../../examples/kubernetes")
	must(t, err)
	s.Kubectl(t, "apply", "-k", examples)
	var set struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	must(t, json.Unmarshal(s.Must(t, http.MethodGet, "/apis/apps/v1/namespaces/kube-system/daemonsets/cnibox", "", nil), &set))

	w := newWorld(t, 1, vxlan)
	kubeconfig := s.Kubeconfig(t, s.Address, s.Token(t, "kube-system", "cnibox"))
	launch := func() *node {
		t.Helper()
		n := w.nodes[len(w.nodes)-1]
		n.forward(s.Address)
		subnet := fmt.Sprintf("10.244.%d.0/24", len(w.nodes))
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{
			"metadata": map[string]any{"name": n.name}, "spec": map[string]any{"podCIDR": subnet, "podCIDRs": []string{subnet}},
		})
		inNode := strings.NewReplacer("/etc/cnibox", examples, "/host", n.Dir())
		flags := []string{"-cni-plugins=vxlan,bridge,host-local", "-kubeconfig-file=" + kubeconfig}
		for _, arg := range set.Spec.Template.Spec.Containers[0].Args[1:] {
			flags = append(flags, inNode.Replace(arg))
		}
		w.registry = flags[:1] // none of the test's own
		n.launch(flags[1:]...)
		w.within(func() bool {
			_, err := n.verb("agent status", nil)
			return err != nil && !strings.Contains(err.Error(), "no agent") || err == nil
		}, func() string { return "no status" })
		return n
	}
	n := launch()
	n.until("rest", func(a answer) bool { return a.Ready && a.RegistryError == "" })
	w.within(func() bool {
		_, err := os.Stat(filepath.Join(n.Dir(), "etc/cni/net.d/10-cnibox.conflist"))
		return err == nil
	}, func() string { return "no network" })
	if code, body := n.getOn(9472, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}

	s.Kubectl(t, "apply", "-f", filepath.Join(examples, "ranges.yaml"))
	lease := w.leasePages(kubeconfig)
	must(t, lease())
	s.InstallIPAMClaims(t)
	s.Must(t, http.MethodPost, "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/default/ipamclaims", "", map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": map[string]any{"name": "vm"}, "spec": map[string]any{"network": "lan", "interface": "net1"},
	})
	allocate := w.allocateClaim(kubeconfig)
	must(t, allocate())
	const roles, label = "/apis/rbac.authorization.k8s.io/v1/", "?labelSelector=app.kubernetes.io/name=cnibox"
	paths := []string{roles + "clusterroles" + label, roles + "namespaces/kube-system/roles" + label, roles + "namespaces/cnibox-ranges/roles" + label}
	s.WithoutEachRight(t, paths, func(resource, verb string) {
		if strings.HasPrefix(resource, "ipamclaims") {
			w.within(func() bool { err = allocate(); return errors.Is(err, rest.ErrForbidden) }, func() string {
				return fmt.Sprintf("without %s of %s: %v", verb, resource, err)
			})
			return
		}
		if resource == "configmaps" || resource == "ippools" {
			w.within(func() bool { err = lease(); return errors.Is(err, rest.ErrForbidden) }, func() string {
				return fmt.Sprintf("without %s of %s: %v", verb, resource, err)
			})
			return
		}
		resource, sub, _ := strings.Cut(resource, "/")
		w.within(func() bool {
			return !s.Allowed(t, "system:serviceaccount:kube-system:cnibox", map[string]string{"verb": verb, "resource": resource, "subresource": sub})
		}, func() string { return "the right is still granted" })
		w.addNode()
		launch().until("without "+verb+" of "+resource+"/"+sub, func(a answer) bool {
			return strings.Contains(a.RegistryError, "forbidden") || !a.Ready && strings.Contains(a.Reason, "forbidden")
		})
	})
}

// allocateClaim returns a function that reads and writes an IPAMClaim as a node does.
func (w *world) allocateClaim(kubeconfig string) func() error {
	t := w.t
	t.Helper()
	client, err := rest.Open(rest.Kubeconfig(kubeconfig))
	must(t, err)
	r, err := kube.Open(kube.Options{Client: client, Node: "node", Config: &cluster.Config{}})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return func() error {
		c, err := r.IPAMClaim(t.Context(), "default", "vm")
		if err != nil {
			return err
		}
		c.IPs, c.Pod = []string{"10.0.0.1/24"}, "pod"
		return r.AllocateIPAMClaim(t.Context(), c)
	}
}

// leasePages returns a function that reads and writes the pages of cluster-wide ranges as a node does.
func (w *world) leasePages(kubeconfig string) func() error {
	t := w.t
	t.Helper()
	client, err := rest.Open(rest.Kubeconfig(kubeconfig))
	must(t, err)
	r, err := kube.Open(kube.Options{Client: client, Node: "node", Config: &cluster.Config{}})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	pages := r.Pages()
	_, err = pages.Write(t.Context(), "10-1-0-0", []byte("{}"), "")
	must(t, err)
	n := 0
	return func() error {
		n++
		name := fmt.Sprintf("10-0-0-%d", n)
		_, version, err := pages.Read(t.Context(), "10-1-0-0")
		_, foreignErr := r.ForeignRanges(t.Context())
		_, createErr := pages.Write(t.Context(), name, []byte("{}"), "")
		_, patchErr := pages.Write(t.Context(), "10-1-0-0", []byte("{}"), version)
		return errors.Join(err, foreignErr, createErr, patchErr, pages.List(t.Context(), func(string, []byte, string) {}))
	}
}

// attachAgain replaces a pod by one in the node's new pod network.
func (n *node) attachAgain(old *pod) *pod {
	n.w.t.Helper()
	n.detach(old)
	n.ip("link del cni0")
	return n.attach()
}
