//go:build kube

package policy_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
)

// TestKubeAdmission: with the rights and the admission policy of the examples, an agent writes what is of its own node and nothing of another
// one.
func TestKubeAdmission(t *testing.T) {
	s, _ := openServer(t)
	const account, examples = "cnibox", "../../../examples/kubernetes/"
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", object{"metadata": object{"name": "kube-system"}}, http.StatusConflict)
	s.Kubectl(t, "apply", "--namespace", "kube-system", "-f", examples+"rbac.yaml")
	s.Kubectl(t, "apply", "-f", examples+"policy.yaml")
	s.Kubectl(t, "apply", "-f", examples+"../kubernetes-egress/rights/egress.yaml")
	for _, node := range []string{"node-1", "node-2"} {
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", object{"metadata": object{"name": node}})
	}
	var pod rest.Object
	var reply struct{ Status struct{ Token string } }
	decode := func(b []byte, v any) {
		t.Helper()
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
	}
	decode(s.Must(t, http.MethodPost, "/api/v1/namespaces/kube-system/pods", "", object{
		"metadata": object{"name": "agent"},
		"spec":     object{"nodeName": "node-1", "serviceAccountName": account, "containers": []any{object{"name": "c", "image": "c"}}},
	}), &pod)
	decode(s.Must(t, http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token", "", object{
		"spec": object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": pod.Metadata.UID}},
	}), &reply)
	agent, err := rest.Open(rest.Kubeconfig(s.Kubeconfig(t, s.Address, reply.Status.Token)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	const given = "/api/v1/namespaces/cnibox-policy/configmaps"
	status := object{"metadata": object{"annotations": object{"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}}
	const egress = "/api/v1/namespaces/cnibox-egress/configmaps"
	write := func(node string) (errs [6]error) {
		errs[0] = agent.Patch(t.Context(), "/api/v1/nodes/"+node+"/status", rest.MergePatch, status, nil)
		errs[1] = agent.Create(t.Context(), given, object{"metadata": object{"name": node}, "data": object{"pods": "{}"}}, nil)
		errs[2] = agent.Patch(t.Context(), given+"/"+node, rest.MergePatch, object{"data": object{"pods": "{}"}}, nil)
		errs[3] = agent.Create(t.Context(), egress, object{"metadata": object{"name": "node-" + node}, "data": object{"pods": "{}"}}, nil)
		holder := object{"address": "203.0.113.7", "holder": node}
		errs[4] = agent.Create(t.Context(), egress, object{"metadata": object{"name": "address-of-" + node}, "data": holder}, nil)
		errs[5] = agent.Patch(t.Context(), egress+"/address-203-0-113-7", rest.MergePatch, object{"data": holder}, nil)
		return errs
	}
	s.Must(t, http.MethodPost, egress, "", object{"metadata": object{"name": "address-203-0-113-7"}})
	for _, node := range []string{"node-2", "node-3"} {
		s.Must(t, http.MethodPost, given, "", object{"metadata": object{"name": node}})
	}
	other := func() error { return agent.Patch(t.Context(), given+"/node-3", rest.MergePatch, status, nil) }
	if err := other(); err != nil {
		t.Fatalf("without the admission policy, which this test is of: %v", err)
	}
	s.Kubectl(t, "apply", "-f", examples+"admission.yaml")
	await.Until(t, func() bool { return other() != nil }, func() string { return "the admission policy is not in force" })
	for i, err := range write("node-2") {
		if err == nil || !strings.Contains(err.Error(), "only what is of the Node that it runs on") {
			t.Errorf("write %d of another node: %v", i, err)
		}
	}
	for i, err := range write("node-1") {
		if err != nil {
			t.Errorf("write %d of the own node: %v", i, err)
		}
	}
}
