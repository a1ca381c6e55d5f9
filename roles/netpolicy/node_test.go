package netpolicy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// isolated is a NetworkPolicy that isolates all pods and allows nothing.
const isolated = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"isolated"},"spec":{
"podSelector":{},"policyTypes":["Ingress","Egress"]}}`

// toNodes returns a ClusterNetworkPolicy with rules for port 80 of a peer. The ingress rule has an unknown peer, so it denies all.
func toNodes(tier string, priority int, action, peer string) string {
	return fmt.Sprintf(`{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy","metadata":{"name":"%[1]s-%[2]d"},"spec":{
"tier":"%[1]s","priority":%[2]d,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"peersOfTheFuture":{}}]}],
"egress":[{"action":"%[3]s","to":[%[4]s],"protocols":[{"tcp":{"destinationPort":{"number":80}}},{"udp":{"destinationPort":{"number":80}}}]}]}}`,
		tier, priority, action, peer)
}

// putCluster puts a policy into a table as Kubernetes' object: unknown parts are no error there.
func putCluster(t *testing.T, table *netpolicy.Table, doc string) {
	t.Helper()
	var o struct {
		Metadata struct{ Name string }
		Spec     netpolicy.ClusterSpec
	}
	if err := json.Unmarshal([]byte(doc), &o); err != nil {
		t.Fatal(err)
	}
	policy, _ := o.Spec.Policy(o.Metadata.Name)
	table.PutClusterPolicy(policy)
}

// TestOwnNode: a pod and its own node reach each other, unless a ClusterNetworkPolicy denies the node to the pod. Then both directions
// of the pod's connections stop. Those of the node, such as the kubelet's probes, always pass.
func TestOwnNode(t *testing.T) {
	forwarding(t)
	addresses := []netip.Addr{netip.MustParseAddr("10.8.200.1"), netip.MustParseAddr("fd08:200::1")}
	for _, a := range addresses {
		ip(t, fmt.Sprintf("addr add %s/%d dev lo", a, a.BitLen()))
	}
	node := &pod{netpolicy.Pod{Addresses: addresses}, netopstest.At("/proc/self/ns/net")}
	const all, nodes = `{"networks":["0.0.0.0/0","::/0"]}`, `{"nodes":{"matchLabels":{"a":"b"}}}`
	tests := map[string]struct {
		policies []string
		denied   bool
	}{
		"NetworkPolicy":                  {[]string{isolated}, false},
		"nodes":                          {[]string{toNodes("Admin", 1, "Deny", nodes)}, true},
		"nodes, with a NetworkPolicy":    {[]string{toNodes("Admin", 1, "Deny", nodes), isolated}, true},
		"other nodes":                    {[]string{toNodes("Admin", 1, "Deny", `{"nodes":{"matchLabels":{"a":"c"}}}`)}, false},
		"networks":                       {[]string{toNodes("Admin", 1, "Deny", all)}, true},
		"accepted before":                {[]string{toNodes("Admin", 1, "Accept", nodes), toNodes("Admin", 2, "Deny", all)}, false},
		"passed":                         {[]string{toNodes("Admin", 1, "Pass", nodes), toNodes("Admin", 2, "Deny", all), isolated}, false},
		"passed to Baseline":             {[]string{toNodes("Admin", 1, "Pass", nodes), toNodes("Baseline", 2, "Deny", all)}, true},
		"Baseline":                       {[]string{toNodes("Baseline", 1, "Deny", nodes)}, true},
		"Baseline after a NetworkPolicy": {[]string{toNodes("Baseline", 1, "Deny", nodes), isolated}, false},
	}
	n := 0
	for name, test := range tests {
		n++
		t.Run(name, func(t *testing.T) {
			f, table := openFilter(t), netpolicy.NewTable()
			p := routed(t, 0, netpolicy.Pod{
				Namespace: "default", Name: "p", UID: "1",
				Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.8.201.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd08:201::%d", n))},
			})
			one := p.Pod
			table.PutPod(&one)
			put(t, table, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}`)
			table.PutNode(&netpolicy.Node{Name: "n", Labels: map[string]string{"a": "b"}, Addresses: addresses})
			locals(table)
			ensure(t, f, table)
			var flows [][3]flow // of the pod, a marker, of the node
			each := func(do func(network string, v6 bool)) {
				for _, network := range []string{"udp", "tcp"} {
					do(network, false)
					do(network, true)
				}
			}
			each(func(network string, v6 bool) {
				flows = append(flows, [3]flow{connect(t, network, p, node, v6, 80), connect(t, network, p, node, v6, 81), connect(t, network, node, p, v6, 80)})
			})
			for _, doc := range test.policies {
				if doc == isolated {
					put(t, table, doc)
				} else {
					putCluster(t, table, doc)
				}
			}
			ensure(t, f, table)
			for i, a := range addresses {
				e := netpolicy.NewExplainer(table).Explain(netpolicy.Flow{Client: one.Addresses[i], Server: a, Protocol: "TCP", Port: 80, ToNode: true})
				if e.Allowed == test.denied {
					t.Errorf("explained: %+v", e)
				}
			}
			for _, of := range flows {
				of[2].passes(t, of[2].client, of[2].server)
				of[2].passes(t, of[2].server, of[2].client)
				for range 3 {
					if !test.denied {
						of[0].passes(t, of[0].server, of[0].client)
						of[0].passes(t, of[0].client, of[0].server)
						continue
					}
					if _, err := of[0].server.Write([]byte("forbidden")); err != nil && !errors.Is(err, unix.EPERM) {
						t.Fatal(err)
					}
					send(t, of[0].client, "forbidden")
					of[1].passes(t, of[1].server, of[1].client)
					of[1].passes(t, of[1].client, of[1].server)
					if text := received(t, of[0].client) + received(t, of[0].server); text != "" {
						t.Fatalf("received %q", text)
					}
				}
			}
			each(func(network string, v6 bool) {
				connect(t, network, node, p, v6, 82)
				connect(t, network, p, node, v6, 83)
			})
			table = netpolicy.NewTable()
			put(t, table, isolated)
			table.PutPod(&one)
			locals(table)
			ensure(t, f, table)
			if out, err := exec.Command("nft", "list", "table", "inet", "cnibox_policy").Output(); err != nil || strings.Contains(string(out), "to_node") {
				t.Errorf("without a ClusterNetworkPolicy: %v\n%s", err, out)
			}
		})
	}
}
