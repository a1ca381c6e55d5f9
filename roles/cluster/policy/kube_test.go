//go:build kube

package policy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
)

// TestKube: a real API server has the policies, the namespaces' labels, and pods of this and of another node, with the
// rights that the documentation lists. The flood brings nothing that a policy forbids; a pod's labels and phase count
// when they change; an unknown pod is denied until the server has it; without the server the known policies stay in force.
func TestKube(t *testing.T) {
	s, client := openServer(t)
	n := newNode(t)
	put := func(p *pod, labels object) {
		t.Helper()
		p.call.Args = podArgs(p.call.ID, createPod(t, s, p.call.ID, "node-1", labels, nil))
	}
	status := func(p *pod, phase string, labels object) {
		t.Helper()
		path := podsPath + "/" + p.call.ID
		if labels != nil {
			s.Must(t, http.MethodPatch, path, rest.MergePatch, object{"metadata": object{"labels": labels}})
		}
		s.Must(t, http.MethodPatch, path+"/status", rest.MergePatch, object{"status": object{
			"phase": phase, "podIPs": []any{object{"ip": p.addresses[0].String()}, object{"ip": p.addresses[1].String()}}, "podIP": p.addresses[0].String(),
		}})
	}
	s.Must(t, http.MethodPost, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "", object{
		"metadata": object{"name": "web"}, "spec": object{
			"podSelector": object{"matchLabels": object{"app": "web"}},
			"ingress": []any{object{
				"from":  []any{object{"podSelector": object{"matchLabels": object{"role": "client"}}, "namespaceSelector": object{}}},
				"ports": []any{object{"port": "web", "protocol": "UDP"}},
			}},
		},
	})
	near, web := n.pod(1, 2, ""), n.pod(1, 3, "")
	put(near, object{"role": "client"})
	put(web, object{"app": "web"})
	stop := n.run(policy.NewKube(client, "node-1", n.host.Log))
	n.add(near)
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.add(web)
	n.more(allowed, "the allowed port")
	n.none(denied, "after ADD")

	// A pod that the client's address does not belong to any more.
	status(near, "Running", object{"role": "other"})
	settled(t, n, allowed, "a client with another label")
	status(near, "Running", object{"role": "client"})
	n.more(allowed, "a client with its label again")
	status(near, "Succeeded", nil)
	settled(t, n, allowed, "a finished client")

	// A pod that the server does not have is denied. One GET finds a pod that the watch has not sent.
	gone := n.pod(1, 4, "")
	gone.call.Args = strings.ReplaceAll(web.call.Args, web.call.ID, "gone")
	unknown := n.sink(gone, 80)
	n.flood(near, gone)
	n.add(gone)
	n.none(unknown, "a pod that is not known")

	// The kind of cluster policies comes later, and its peers select nodes, one of which has the client's address. It goes with its
	// objects.
	node := object{"metadata": object{"name": "node-9", "labels": object{"zone": "a"}}}
	s.Must(t, http.MethodPost, "/api/v1/nodes", "", node)
	s.Must(t, http.MethodPatch, "/api/v1/nodes/node-9/status", rest.MergePatch, object{"status": object{"addresses": []any{
		object{"type": "InternalIP", "address": web.addresses[0].String()}, object{"type": "ExternalIP", "address": web.addresses[1].String()},
	}}})
	status(near, "Running", object{"role": "client"})
	n.more(allowed, "before the cluster policy")
	s.InstallClusterPolicies(t)
	s.Must(t, http.MethodPost, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", "", object{
		"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": object{"name": "nodes"}, "spec": object{
			"tier": "Admin", "priority": 1, "subject": object{"namespaces": object{}},
			"egress": []any{object{"action": "Deny", "to": []any{object{"nodes": object{"matchLabels": object{"zone": "a"}}}}}},
		},
	})
	settled(t, n, allowed, "a cluster policy")
	s.Must(t, http.MethodDelete, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusternetworkpolicies.policy.networking.k8s.io", "", nil)
	n.more(allowed, "without the kind of cluster policies")

	s.StopAPI()
	n.none(denied, "without the API server")
	stop()
	n.none(denied, "without the agent")
}

// settled waits until nothing arrives while the flood goes on to a port that another program counts.
func settled(t *testing.T, n *node, s *sink, what string) {
	t.Helper()
	last := int64(-1)
	await.Until(t, func() bool {
		now, sent := s[0].Load()+s[1].Load(), n.sent.Load()
		await.Until(t, func() bool { return n.sent.Load() > sent+100 }, func() string { return "the flood ended" })
		same := now == last
		last = now
		return same
	}, func() string { return what + ": datagrams arrive" })
}
