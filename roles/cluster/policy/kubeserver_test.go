//go:build kube

package policy_test

import (
	"encoding/json"
	"net/http"
	"runtime"
	"testing"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/kubetest"
)

type object = map[string]any

// podsPath is the collection of the pods in the namespace default.
const podsPath = "/api/v1/namespaces/default/pods"

// openServer starts a real API server, and returns a client with the rights of the documentation.
func openServer(t *testing.T) (*kubetest.Server, *rest.Client) {
	t.Helper()
	runtime.LockOSThread() // the server ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	s, err := kubetest.Start(kubetest.DebianEtcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	follow := []string{"list", "watch"}
	s.Allow(t, "agents", kubetest.Rule{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: append([]string{"get"}, follow...)},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: follow},
		kubetest.Rule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: follow},
		kubetest.Rule{APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}, Verbs: follow},
		kubetest.Rule{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"multi-networkpolicies"}, Verbs: follow},
		kubetest.Rule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: append([]string{"create", "patch"}, follow...)})
	client, err := rest.Open(rest.Kubeconfig(s.Kubeconfig(t, s.Address, kubetest.Agent)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", "", object{"metadata": object{"name": "default"}}, http.StatusCreated, http.StatusConflict)
	return s, client
}

// createPod creates a pod of a node, whose port web is UDP 80, and returns its UID.
func createPod(t *testing.T, s *kubetest.Server, name, node string, labels, annotations object) string {
	t.Helper()
	b := s.Must(t, http.MethodPost, podsPath, "", object{
		"metadata": object{"name": name, "labels": labels, "annotations": annotations},
		"spec": object{"nodeName": node, "automountServiceAccountToken": false, "containers": []any{object{
			"name": "c", "image": "x", "ports": []any{object{"name": "web", "containerPort": 80, "protocol": "UDP"}},
		}}},
	})
	var have struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal(b, &have); err != nil {
		t.Fatal(err)
	}
	return have.Metadata.UID
}

// podArgs returns the CNI_ARGS of a pod in the namespace default.
func podArgs(name, uid string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid
}
