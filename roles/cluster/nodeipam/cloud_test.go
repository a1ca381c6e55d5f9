//go:build kube

package nodeipam_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/cloudsim"
)

// createAt makes a Node with an address, and returns the token of a pod of the cloud's daemon there.
func (w *world) createAt(name, address string, cidrs ...string) (token string) {
	w.t.Helper()
	w.create(name, cidrs...)
	w.Must(w.t, http.MethodPatch, nodesPath+"/"+name+"/status", rest.MergePatch, map[string]any{
		"status": map[string]any{
			"addresses":  []any{map[string]string{"type": "Hostname", "address": name}, map[string]string{"type": "InternalIP", "address": address}},
			"conditions": []any{map[string]string{"type": "Ready", "status": "False"}},
		},
	})
	const pods, account = "/api/v1/namespaces/kube-system/pods", "cnibox-nodeipam-cloud"
	var o rest.Object
	w.decode(w.Must(w.t, http.MethodPost, pods, "", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"nodeName": name, "serviceAccountName": account, "containers": []any{map[string]string{"name": "c", "image": "c"}}},
	}), &o)
	var reply struct{ Status struct{ Token string } }
	w.decode(w.Must(w.t, http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token", "", map[string]any{
		"spec": map[string]any{"boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": o.Metadata.UID}},
	}), &reply)
	return reply.Status.Token
}

// TestCloud: with the rights of the example, a Node waits until its cloud gives it prefixes, and gets the largest one of
// each family. A daemon changes no other Node, and reports networks that the cloud does not give.
func TestCloud(t *testing.T) {
	w := newWorld(t)
	w.apply("../../../examples/kubernetes/nodeipam-cloud.yaml")
	for _, c := range []struct{ provider, want string }{{"aws", "10.0.0.64/27,2001:db8:1:1:aaaa::/80"}, {"gcp", "10.0.0.64/27"}, {"alibaba", "10.0.0.64/27,2001:db8:1:1:aaaa::/80"}} {
		provider, want := c.provider, c.want
		sim, err := cloudsim.Start(t.Context(), cloudsim.Options{Providers: []string{provider}, Listen: []string{"127.0.0.1:0"}, NICs: []store.CloudNIC{
			{MAC: "02:1b:2c:3d:4e:01", Primary: true, Subnets: []store.CloudSubnet{
				{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Own: []netip.Addr{netip.MustParseAddr("10.0.0.10")}},
				{Prefix: netip.MustParsePrefix("2001:db8:1:1::/64"), Own: []netip.Addr{netip.MustParseAddr("2001:db8:1:1::10")}},
			}},
			{MAC: "02:1b:2c:3d:4e:02", Device: 1, Subnets: []store.CloudSubnet{
				{Prefix: netip.MustParsePrefix("10.0.1.0/24"), Own: []netip.Addr{netip.MustParseAddr("10.0.1.10")}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.1.128/25")}},
			}},
		}})
		w.must(err)
		t.Cleanup(func() { _ = sim.Close() })
		start := func(node string) *replica {
			return w.start("", "-cidr-allocator-type=CloudAllocator", "-cloud-provider="+provider, "-cloud-url="+sim.URL(), "-node-name="+node)
		}
		do := func(args ...string) {
			t.Helper()
			_, err := sim.Do(args...)
			w.must(err)
		}
		do("break", "503", "--count", "1")
		name := "node-" + provider
		w.token = w.createAt(name, "10.0.0.10")
		r := start(name)
		r.until("reason", func(s status) bool {
			return s.Waiting == 1 && strings.Contains(s.Error, "gives no prefix to the first network interface")
		})
		if got := w.events(name); !slices.Equal(got, []string{"CIDRNotAvailable"}) {
			t.Errorf("events %v", got)
		}
		w.condition(name, "CIDRNotAvailable")
		do("add", "10.0.0.48/28", "10.0.0.64/27")
		if provider != "gcp" {
			do("add", "2001:db8:1:1:aaaa::/80")
		}
		if got := w.assigned(name); got != want {
			t.Errorf("%s: %s, want %s", provider, got, want)
		}
		w.condition(name, "")
		r.until("rest", func(s status) bool { return s.Waiting == 0 && s.Error == "" })
		r.stop()
		do("withdraw", "10.0.0.64/27")
		r = start(name)
		r.until("withdrawn network", func(s status) bool {
			return strings.Contains(s.Error, "the cloud does not give 10.0.0.64/27 to this node")
		})
		r.stop()

		// A daemon with the name of another Node.
		w.createAt(provider+"-other", "10.0.0.11")
		r = start(provider + "-other")
		r.until("reason", func(s status) bool {
			return strings.Contains(s.Error, "no InternalIP of the Node is an address of this machine")
		})
		r.stop()
	}

	// The policy protects other Nodes, and what is not a pod network.
	w.createAt("last", "10.0.0.12")
	client, err := rest.Open(rest.Kubeconfig(w.Kubeconfig(t, w.Address, w.token)))
	w.must(err)
	defer client.Close()
	const own = "node-alibaba"
	for _, c := range []struct{ node, patch, want string }{
		{"last", `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, "only the Node that it runs on"},
		{own, `{"metadata":{"labels":{"a":"b"}}}`, "only pod networks"},
		{own, `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, "only pod networks"},
		{own, `{"spec":{"unschedulable":true}}`, "only pod networks"},
		{own + "/status", `{"metadata":{"labels":{"a":"b"}}}`, "only pod networks"},
		{own + "/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "only its own condition"},
		{own + "/status", `{"status":{"capacity":{"cpu":"1"}}}`, "only its own condition"},
		{own + "/status", `{"status":{"addresses":null}}`, "only its own condition"},
		{"last/status", `{"status":{"conditions":[{"type":"cnibox.io/PodNetwork","status":"False"}]}}`, "only the Node that it runs on"},
	} {
		await.Until(t, func() bool {
			err = client.Patch(t.Context(), nodesPath+"/"+c.node, rest.MergePatch, json.RawMessage(c.patch), nil)
			return err != nil && strings.Contains(err.Error(), c.want)
		}, func() string { return fmt.Sprintf("%s of %s: %v", c.patch, c.node, err) })
	}

	// Each right is used.
	const rbac, mine = "/apis/rbac.authorization.k8s.io/v1/", "?fieldSelector=metadata.name=cnibox-nodeipam-cloud"
	sim, err := cloudsim.Start(t.Context(), cloudsim.Options{Providers: []string{"aws"}, Listen: []string{"127.0.0.1:0"}, NICs: []store.CloudNIC{
		{MAC: "02:1b:2c:3d:4e:01", Primary: true, Subnets: []store.CloudSubnet{
			{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Own: []netip.Addr{netip.MustParseAddr("10.0.0.12")}},
		}},
	}})
	w.must(err)
	t.Cleanup(func() { _ = sim.Close() })
	w.WithoutEachRight(t, []string{rbac + "clusterroles" + mine, rbac + "namespaces/default/roles" + mine}, func(resource, verb string) {
		await.Until(t, func() bool {
			return !w.Allowed(t, "system:serviceaccount:kube-system:cnibox-nodeipam-cloud", map[string]string{"verb": verb, "resource": resource, "namespace": map[string]string{"events": "default"}[resource]})
		}, func() string { return "the right is still granted" })
		name := "without-" + verb + "-" + strings.ReplaceAll(resource, "/", "-")
		w.token = w.createAt(name, "10.0.0.12")
		if verb == "patch" && resource == "nodes" {
			_, err := sim.Do("add", "10.0.0.64/28")
			w.must(err)
			defer func() { _, _ = sim.Do("withdraw", "10.0.0.64/28") }()
		}
		r := w.start("", "-cidr-allocator-type=CloudAllocator", "-cloud-provider=aws", "-cloud-url="+sim.URL(), "-node-name="+name)
		await.Until(t, func() bool {
			s, _ := r.status()
			return strings.Contains(s.Error+r.log.String(), fmt.Sprintf(`cannot %s resource`, verb))
		}, func() string { return fmt.Sprintf("without %s of %s: %s", verb, resource, r.log) })
		r.stop()
	})
}
