//go:build kube

package policy_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
)

// TestKubeMulti: a server that has only the first version of MultiNetworkPolicy. A policy is enforced on its network from ADD on, follows
// the pods' labels, and knows the addresses of another node's pods from their network-status.
func TestKubeMulti(t *testing.T) {
	s, client := openServer(t)
	s.InstallMultiPolicies(t, "v1beta1")
	n := newNode(t)
	n.networks()
	const policies = "/apis/k8s.cni.cncf.io/v1beta1/namespaces/default/multi-networkpolicies"
	s.Must(t, http.MethodPost, policies, "", object{
		"apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
		"metadata": object{"name": "web", "annotations": object{netpolicy.NetworksKey: "blue"}},
		"spec": object{
			"podSelector": object{"matchLabels": object{"app": "web"}},
			"ingress":     []any{object{"from": []any{object{"podSelector": object{"matchLabels": object{"role": "client"}}}}, "ports": []any{object{"port": 80, "protocol": "UDP"}}}},
		},
	})
	createPod(t, s, "p1-2", "node-1", object{"role": "client"}, nil)
	createPod(t, s, "p1-3", "node-1", object{"app": "web"}, nil)
	createPod(t, s, "far", "node-2", object{"role": "client"}, object{
		"k8s.v1.cni.cncf.io/network-status": `[{"name":"net1","ips":["10.1.0.9"],"default":true},{"name":"default/blue","ips":["10.2.0.9"]}]`,
	})
	n.run(policy.NewKube(client, "node-1", n.host.Log))
	_, near := n.blue(2, "")
	_, web := n.blue(3, "")
	allowed, denied := n.sinkOn(web, 80), n.sinkOn(web, 81)
	n.flood(near, web)
	n.more(allowed, "the allowed port")
	n.none(denied, "after ADD")
	state, err := control.State(t.Context(), n.host.Store)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(state.Pods, func(p *netpolicy.Pod) bool { return p.Name == "far" })
	if b, err := json.Marshal(state.Pods[i].Networks); err != nil || string(b) != `{"default/blue":["10.2.0.9"]}` {
		t.Errorf("%s %v", b, err)
	}

	s.Must(t, http.MethodPatch, podsPath+"/p1-2", rest.MergePatch, object{"metadata": object{"labels": object{"role": "other"}}})
	settled(t, n, allowed, "a client with another label")
	s.Must(t, http.MethodDelete, policies+"/web", "", nil)
	await.Until(t, func() bool { return denied[0].Load() > 0 && denied[1].Load() > 0 }, func() string { return "the policy stays" })
}
