//go:build kube

package nodeipam_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
	"github.com/cnibox/cnibox/test/port"
)

const rangesPath = "/apis/networking.x-k8s.io/v1/clustercidrs"

// addRange makes a ClusterCIDR. Without a label it is for all nodes.
func (w *world) addRange(name, ipv4 string, hostBits int, label string) {
	w.t.Helper()
	spec := map[string]any{"perNodeHostBits": hostBits, "ipv4": ipv4}
	if label != "" {
		spec["nodeSelector"] = map[string]any{"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": label, "operator": "Exists"}}}}}
	}
	w.Must(w.t, http.MethodPost, rangesPath, "", map[string]any{
		"apiVersion": "networking.x-k8s.io/v1", "kind": "ClusterCIDR", "metadata": map[string]any{"name": name}, "spec": spec,
	})
}

// finalizers returns those of a ClusterCIDR, and whether it exists.
func (w *world) finalizers(name string) (all []string, exists bool) {
	w.t.Helper()
	var o rest.Object
	w.decode(w.Must(w.t, http.MethodGet, rangesPath+"/"+name, "", nil, http.StatusNotFound), &o)
	return o.Metadata.Finalizers, o.Code != http.StatusNotFound
}

// withRanges adds the definition of ClusterCIDRs.
func (w *world) withRanges() {
	w.t.Helper()
	w.apply("../../../examples/kubernetes/clustercidr.yaml")
	await.Until(w.t, func() bool { _, err := w.Do(http.MethodGet, rangesPath, "", nil); return err == nil }, func() string { return "the API server does not serve ClusterCIDRs" })
}

// TestRights: each right of the examples is used. A daemon without it reports that. With Debian's etcd the server does
// not stream lists, so that the right to list is used, too.
func TestRights(t *testing.T) {
	w := newWorldOn(t, kubetest.DebianEtcd)
	w.withRanges()
	round := 0
	run := func(missing, resource string, wanted func(log string) bool) {
		t.Helper()
		round++
		w.Must(t, http.MethodDelete, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cnibox-nodeipam", "", nil, http.StatusNotFound)
		w.addRange(fmt.Sprintf("range-%d", round), fmt.Sprintf("10.%d.0.0/28", round), 4, fmt.Sprintf("round-%d", round))
		for _, name := range []string{"first", "second"} { // one of them gets the block
			w.Must(t, http.MethodPost, nodesPath, "", map[string]any{"metadata": map[string]any{
				"name": fmt.Sprintf("%s-%d", name, round), "labels": map[string]string{fmt.Sprintf("round-%d", round): ""},
			}})
		}
		r := w.start("", "-cluster-cidr-objects")
		await.Until(t, func() bool { return wanted(r.log.String()) }, func() string { return fmt.Sprintf("without %s of %s:\n%s", missing, resource, r.log) })
		r.stop()
	}
	run("nothing", "all", func(log string) bool {
		if strings.Contains(log, "forbidden") {
			t.Fatalf("the examples have too few rights:\n%s", log)
		}
		return strings.Contains(log, "assigned pod networks") && len(w.events("first-1"))+len(w.events("second-1")) > 0
	})
	groups := map[string]string{"leases": "coordination.k8s.io", "clustercidrs": "networking.x-k8s.io"}
	namespaces := map[string]string{"leases": "kube-system", "events": "default"}
	const rbac, mine = "/apis/rbac.authorization.k8s.io/v1/", "?fieldSelector=metadata.name=cnibox-nodeipam"
	w.WithoutEachRight(t, []string{rbac + "clusterroles" + mine, rbac + "clusterroles" + mine + "-ranges", rbac + "namespaces/default/roles" + mine, rbac + "namespaces/kube-system/roles" + mine}, func(resource, verb string) {
		await.Until(t, func() bool {
			return !w.Allowed(t, "system:serviceaccount:kube-system:cnibox-nodeipam", map[string]string{
				"verb": verb, "resource": resource, "group": groups[resource], "namespace": namespaces[resource], "name": "cnibox-nodeipam",
			})
		}, func() string { return "the right is still granted" })
		run(verb, resource, func(log string) bool {
			return strings.Contains(log, fmt.Sprintf(`cannot %s resource \"%s\"`, verb, resource))
		})
	})
}

// TestRanges: with the rights of the examples, a ClusterCIDR that is made serves a Node that waits, and one that is deleted is not used
// and goes when no Node has a block of it. A next leader continues.
func TestRanges(t *testing.T) {
	w := newWorld(t)
	w.withRanges()
	free, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", free)
	r := w.start("", "-cluster-cidr-objects", "-metrics-bind-address="+at)
	r.leads()
	w.create("a")
	await.Until(t, func() bool { return slices.Contains(w.events("a"), "CIDRNotAvailable") }, func() string { return "a Node without a range has no event" })
	w.addRange("general", "10.1.0.0/22", 8, "")
	if got := w.assigned("a"); got != "10.1.0.0/24" {
		t.Errorf("a has %s", got)
	}
	w.addRange("gpu", "10.2.0.0/24", 7, "gpu")
	await.Until(t, func() bool { f, _ := w.finalizers("gpu"); return len(f) == 1 }, func() string { return "the new range has no finalizer" })
	r.until("second range", func(s status) bool { return len(s.Networks) == 2 })
	w.Must(t, http.MethodPost, nodesPath, "", map[string]any{"metadata": map[string]any{"name": "b", "labels": map[string]string{"gpu": "2"}}})
	if got := w.assigned("b"); got != "10.2.0.0/25" {
		t.Errorf("b has %s", got)
	}
	resp, err := http.Get("http://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for _, want := range []string{
		"cnibox_nodeipam_leader 1", `node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR="10.2.0.0/24",range="gpu"} 1`,
		`node_ipam_controller_cidrset_usage_cidrs{clusterCIDR="10.2.0.0/24",range="gpu"} 0.5`, `node_ipam_controller_cirdset_max_cidrs{clusterCIDR="10.1.0.0/22",range="general"} 4`,
		`node_ipam_controller_cidrset_allocation_tries_per_request_bucket{le="+Inf",clusterCIDR="10.1.0.0/22",range="general"} 1`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	// The next leader sees the deletion, and the range stays for b.
	r.stop()
	w.Must(t, http.MethodDelete, rangesPath+"/gpu", "", nil)
	w.start("", "-cluster-cidr-objects").leads()
	w.Must(t, http.MethodPost, nodesPath, "", map[string]any{"metadata": map[string]any{"name": "c", "labels": map[string]string{"gpu": "2"}}})
	if got := w.assigned("c"); got != "10.1.1.0/24" {
		t.Errorf("c has %s", got)
	}
	if f, exists := w.finalizers("gpu"); !exists || len(f) != 1 {
		t.Errorf("a range with a Node has the finalizers %v", f)
	}
	w.remove("b")
	await.Until(t, func() bool { _, exists := w.finalizers("gpu"); return !exists }, func() string { return "the range stays without Nodes" })
	w.assignedAll(2)
}

// TestRangeFileLive: without an API server ranges are added and drained in a file. While it is invalid, the former ranges stay.
func TestRangeFileLive(t *testing.T) {
	w := newRegistry(t, "dir")
	path := filepath.Join(t.TempDir(), "ranges.yaml")
	write := func(text string) {
		t.Helper()
		w.must(smallfile.Replace(path, []byte(text), 0o644))
	}
	const general = "items:\n- metadata: {name: general}\n  spec: {ipv4: 10.1.0.0/16, perNodeHostBits: 8, nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: DoesNotExist}]}]}}\n"
	const zone = "- metadata: {name: zone%s}\n  spec: {ipv4: 10.2.0.0/16, perNodeHostBits: 8}\n"
	write(general)
	r := w.start("", "-cluster-cidr-file="+path)
	w.must(w.add("a", nil, nil))
	if got := w.assigned("a"); got != "10.1.0.0/24" {
		t.Errorf("a has %s", got)
	}
	w.must(w.add("b", map[string]string{"zone": "b"}, nil))
	r.until("reason", func(s status) bool {
		return len(s.Faults) == 1 && strings.Contains(s.Faults[0].Error, "no ClusterCIDR selects")
	})
	write(general + fmt.Sprintf(zone, ""))
	if got := w.assigned("b"); got != "10.2.0.0/24" {
		t.Errorf("b has %s", got)
	}
	write(general + fmt.Sprintf(zone, "") + "- spec")
	r.until("error", func(s status) bool { return strings.Contains(s.Error, "-cluster-cidr-file: ") })
	w.must(w.add("c", map[string]string{"zone": "b"}, nil))
	if got := w.assigned("c"); got != "10.2.1.0/24" {
		t.Errorf("c has %s", got)
	}
	write(general + fmt.Sprintf(zone, ", deletionTimestamp: now"))
	r.until("end of the error", func(s status) bool { return s.Error == "" && len(s.Networks) == 2 })
	w.must(w.add("d", map[string]string{"zone": "b"}, nil))
	r.until("reason", func(s status) bool { return len(s.Faults) == 1 && s.Faults[0].Node == "d" })
	write(general)
	r.until("removed range", func(s status) bool { return len(s.Networks) == 1 && len(s.Faults) == 3 })
}
