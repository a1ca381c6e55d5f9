package netpolicy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

// The generator and the evaluator of ClusterNetworkPolicies follow the doc comments of the API v1alpha2 alone
// (https://pkg.go.dev/sigs.k8s.io/network-policy-api@v0.2.0/apis/v1alpha2). They share no code with the compiler.

// node is a node of the cluster: its labels and its addresses.
type node struct {
	labels    map[string]string
	addresses []netip.Addr
}

// randomClusterPeer makes a peer. One in twelve is not known.
func randomClusterPeer(r *rand.Rand, egress bool) object {
	n := 8
	if egress {
		n = 12
	}
	switch r.IntN(n) {
	case 0:
		return pick(r, object{}, object{"peersOfTheFuture": object{"a": "b"}}, object{"namespaces": object{"matchExpressions": []any{
			object{"key": "app", "operator": "Near", "values": []any{"a"}},
		}}})
	case 1, 2, 3:
		return object{"namespaces": randomSelector(r)}
	case 4, 5, 6, 7:
		return object{"pods": object{"namespaceSelector": randomSelector(r), "podSelector": randomSelector(r)}}
	case 8:
		return object{"nodes": randomSelector(r)}
	case 9:
		return object{"domainNames": []any{"*.example.org", "example.org"}}
	}
	var networks []any
	for range 1 + r.IntN(3) {
		if n := pick[any](r, "10.9.0.0/29", "10.9.0.2/32", "fd09::/126", "0.0.0.0/0", "10.9.1.0/24", "fd09:1::/64", "10.9.0.4/30", "::/0"); !slices.Contains(networks, n) {
			networks = append(networks, n)
		}
	}
	return object{"networks": networks}
}

func randomProtocol(r *rand.Rand, named bool) object {
	if named && r.IntN(4) == 0 {
		return object{"destinationNamedPort": pick(r, "web", "other")}
	}
	port := object{"number": pick(r, 80, 81, 82)}
	if r.IntN(3) == 0 {
		port = object{"range": object{"start": pick(r, 79, 80), "end": pick(r, 81, 82)}}
	}
	return object{pick(r, "udp", "udp", "udp", "tcp", "sctp"): object{"destinationPort": port}}
}

func randomClusterPolicy(r *rand.Rand, name string, priority int) object {
	subject := object{"namespaces": randomSelector(r)}
	if r.IntN(2) == 0 {
		subject = object{"pods": object{"namespaceSelector": randomSelector(r), "podSelector": randomSelector(r)}}
	}
	spec := object{"tier": pick(r, "Admin", "Baseline"), "priority": priority, "subject": subject}
	for key, peers := range map[string]string{"ingress": "from", "egress": "to"} {
		var rules []any
		for range r.IntN(4) {
			rule := object{"action": pick(r, "Accept", "Deny", "Pass")}
			if r.IntN(2) == 0 {
				rule["name"] = fmt.Sprint("rule ", len(rules))
			}
			var to, protocols []any
			named := true
			for range 1 + r.IntN(3) {
				p := randomClusterPeer(r, key == "egress")
				to = append(to, p)
				named = named && p["nodes"] == nil && p["networks"] == nil && p["domainNames"] == nil
			}
			for range r.IntN(3) {
				protocols = append(protocols, randomProtocol(r, named))
			}
			if rule[peers] = to; protocols != nil {
				rule["protocols"] = protocols
			}
			rules = append(rules, rule)
		}
		if rules != nil {
			spec[key] = rules
		}
	}
	return object{
		"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
		"metadata": object{"name": name}, "spec": spec,
	}
}

// addCluster adds a node, a pod on its network, and policies, and puts them into a table as Kubernetes' objects: unknown parts
// are no error there.
func (w *world) addCluster(r *rand.Rand, table *netpolicy.Table, at *pod, say func(object) string) {
	n := node{map[string]string{"app": pick(r, labelValues...)}, at.Addresses}
	w.nodes = []node{n}
	table.PutNode(&netpolicy.Node{Name: "node", Labels: n.labels, Addresses: n.addresses})
	table.PutPod(&netpolicy.Pod{
		Namespace: "x", Name: "host", UID: "h", Labels: map[string]string{"app": "a", "tier": "a"}, Addresses: at.Addresses, HostNetwork: true,
	})
	for i, priority := range r.Perm(5)[:1+r.IntN(4)] {
		p := randomClusterPolicy(r, fmt.Sprint("c", i), priority)
		w.cluster = append(w.cluster, p)
		var o struct{ Spec netpolicy.ClusterSpec }
		if err := json.Unmarshal([]byte(say(p)), &o); err != nil {
			panic(err)
		}
		policy, _ := o.Spec.Policy(fmt.Sprint("c", i))
		table.PutClusterPolicy(policy)
	}
}

// passes reports whether a connection passes all tiers on both sides.
func (w *world) passes(c *connection) bool {
	return c.client == c.server || w.tiers("egress", "to", c.client, c) && w.tiers("ingress", "from", c.server, c)
}

func (w *world) tiers(key, peers string, self *pod, c *connection) bool {
	if !self.isPod() {
		return true
	}
	switch w.tier("Admin", key, peers, self, c) {
	case "Accept":
		return true
	case "Deny":
		return false
	}
	if w.selected(key, self) {
		return w.direction(key, peers, self, c)
	}
	return w.tier("Baseline", key, peers, self, c) != "Deny"
}

// selected reports whether a NetworkPolicy selects the pod for a direction.
func (w *world) selected(key string, self *pod) bool {
	return slices.ContainsFunc(w.policies, func(p object) bool {
		spec := p["spec"].(object)
		kind := map[string]any{"egress": "Egress", "ingress": "Ingress"}[key]
		types := list(spec, "policyTypes")
		applies := slices.Contains(types, kind) || types == nil && (key == "ingress" || len(list(spec, key)) > 0)
		return applies && p["metadata"].(object)["namespace"] == self.Namespace && evalSelector(spec["podSelector"], self.Labels)
	})
}

// tier returns the action of the first rule that matches, or "".
func (w *world) tier(tier, key, peers string, self *pod, c *connection) string {
	var policies []object
	for _, p := range w.cluster {
		spec := p["spec"].(object)
		if spec["tier"] == tier && w.pods(spec["subject"].(object), self) {
			policies = append(policies, spec)
		}
	}
	sort.Slice(policies, func(i, j int) bool { return policies[i]["priority"].(int) < policies[j]["priority"].(int) })
	for _, spec := range policies {
		for _, r := range list(spec, key) {
			r := r.(object)
			if slices.ContainsFunc(list(r, peers), func(q any) bool { return !known(q.(object)) }) {
				if r["action"] != "Accept" {
					return "Deny"
				}
				continue
			}
			peer := slices.ContainsFunc(list(r, peers), func(q any) bool { return w.clusterPeer(q.(object), c.other(self), c.v6) })
			protocols := list(r, "protocols")
			if peer && (protocols == nil || slices.ContainsFunc(protocols, func(q any) bool { return evalProtocol(q.(object), c) })) {
				return r["action"].(string)
			}
		}
	}
	return ""
}

// known reports whether a peer has a field that we know, with a value that we understand. We do not know domain names.
func known(q object) bool {
	if s, ok := q["namespaces"].(object); ok {
		for _, e := range list(s, "matchExpressions") {
			if e.(object)["operator"] == "Near" {
				return false
			}
		}
	}
	return q["namespaces"] != nil || q["pods"] != nil || q["nodes"] != nil || q["networks"] != nil
}

// pods reports whether a peer or a subject selects a pod by its labels.
func (w *world) pods(q object, p *pod) bool {
	if !p.isPod() {
		return false
	}
	if s, ok := q["namespaces"]; ok {
		return evalSelector(s, w.namespaces[p.Namespace])
	}
	s, ok := q["pods"].(object)
	return ok && evalSelector(s["namespaceSelector"], w.namespaces[p.Namespace]) && evalSelector(s["podSelector"], p.Labels)
}

func (w *world) clusterPeer(q object, other *pod, v6 bool) bool {
	address := other.address(v6)
	if s, ok := q["nodes"]; ok {
		return slices.ContainsFunc(w.nodes, func(n node) bool { return evalSelector(s, n.labels) && slices.Contains(n.addresses, address) })
	}
	return w.pods(q, other) || slices.ContainsFunc(list(q, "networks"), func(n any) bool {
		return netip.MustParsePrefix(n.(string)).Contains(address)
	})
}

func evalProtocol(q object, c *connection) bool {
	if name, ok := q["destinationNamedPort"].(string); ok {
		return slices.Contains(c.server.Ports, netpolicy.PodPort{Name: name, Protocol: c.protocol, Port: uint16(c.port)})
	}
	of, ok := q[strings.ToLower(c.protocol)].(object)
	if !ok {
		return false
	}
	p := of["destinationPort"].(object)
	if n, ok := p["number"].(int); ok {
		return n == c.port
	}
	span := p["range"].(object)
	return span["start"].(int) <= c.port && c.port <= span["end"].(int)
}
