package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

const (
	policyNode = "self"
	// smallPod and bigPod are the numbers of the pods whose addresses the namespace far has.
	smallPod, bigPod = 1_000_000, 2_000_000
	// firstPort and lastPort are TCP ports that the first and the last policy of a namespace allow. closedPort is allowed by none.
	firstPort, lastPort, closedPort = 9000, 9001, 7006
)

// policyPorts are the ports of which probeSpec allows one.
func policyPorts() [2]int { return [2]int{7000, 7001} }

type object = map[string]any

// address is that of a pod of another node.
func address(i int) netip.Addr {
	switch { // the pods of a namespace have addresses in a row
	case i >= bigPod:
		i += 200_000 - bigPod
	case i >= smallPod:
		i += 300_000 - smallPod
	}
	return netip.AddrFrom4([4]byte{10, byte(100 + i>>16), byte(i >> 8), byte(i)})
}

func jsonText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func stored(path string, o object) operation { return put("/registry/"+path, jsonText(o)) }

func metadata(namespace, name string, labels object) object {
	m := object{"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
	if namespace != "" {
		m["namespace"] = namespace
	}
	return m
}

// storedPod is a pod as the API server stores it.
func storedPod(namespace, name string, labels object, node, host string, a netip.Addr) operation {
	return stored("pods/"+namespace+"/"+name, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": metadata(namespace, name, labels),
		"spec": object{"nodeName": node, "containers": []any{object{"name": "c", "image": "registry.example.com/app:v1", "ports": []any{object{"name": "web", "containerPort": 80, "protocol": "TCP"}}}}},
		"status": object{
			"phase": "Running", "hostIP": host, "hostIPs": []any{object{"ip": host}}, "podIP": a.String(), "podIPs": []any{object{"ip": a.String()}},
			"conditions": []any{object{"type": "Ready", "status": "True"}},
		},
	})
}

func storedPolicy(namespace, name string, spec object) operation {
	return stored("networkpolicies/"+namespace+"/"+name, object{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(namespace, name, nil), "spec": spec,
	})
}

// objects returns what etcd has for a shape. The pods of this node are in the first namespaces.
func (s *shape) objects(local []netip.Addr) (all []operation) {
	all = append(all, stored("minions/"+policyNode, object{
		"apiVersion": "v1", "kind": "Node", "metadata": metadata("", policyNode, nil), "spec": object{"podCIDR": "10.0.1.0/24", "podCIDRs": []any{"10.0.1.0/24"}},
		"status": object{"addresses": []any{object{"type": "InternalIP", "address": "172.16.0.1"}}},
	}))
	namespaces := map[string]bool{}
	pod := func(i int, namespace, node string, a netip.Addr) {
		namespaces[namespace] = true
		labels, host := object{"app": fmt.Sprint(i % 7), "tier": fmt.Sprint(i % 3), "role": "a"}, "172.16.0.9"
		if s.labelSets > 0 {
			labels["set"] = fmt.Sprint(i % s.labelSets)
		}
		if node == policyNode {
			host = "172.16.0.1"
		}
		all = append(all, storedPod(namespace, fmt.Sprint("p", i), labels, node, host, a))
	}
	for i := range localPods + addsPerRound {
		a := netip.MustParseAddr("10.201.0.1") // without an interface
		if i < localPods {
			a = local[i]
		}
		pod(i, localNamespace(i), policyNode, a)
	}
	rest := s.pods - localPods
	for i := range smallPods {
		pod(smallPod+i, "small", "other", address(smallPod+i))
	}
	if s.big {
		rest -= bigPods + smallPods
		for i := range bigPods {
			pod(bigPod+i, "big", "other", address(bigPod+i))
		}
	}
	for i := localPods + addsPerRound; i < rest+localPods; i++ {
		namespace := localNamespace(i)
		if s.big {
			namespace = fmt.Sprint("m", i%500)
		}
		pod(i, namespace, "other", address(i))
	}
	for i := range s.policies {
		all = append(all, s.policy(i))
	}
	for i := range podNamespaces { // a policy before and one behind the others
		all = append(all, storedPolicy(fmt.Sprint("n", i), "aa-first", allow(firstPort)))
		if i > 0 {
			all = append(all, storedPolicy(fmt.Sprint("n", i), "zz-last", allow(lastPort)))
		}
	}
	var probe struct{ Spec object }
	_ = json.Unmarshal([]byte(probeSpec(0)), &probe)
	all = append(all, storedPolicy("n0", "zz-probe", probe.Spec))
	for name := range namespaces {
		all = append(all, stored("namespaces/"+name, object{
			"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("", name, object{"zone": "a", "team": fmt.Sprint(len(name)), "kubernetes.io/metadata.name": name}),
			"spec": object{"finalizers": []any{"kubernetes"}}, "status": object{"phase": "Active"},
		}))
	}
	return all
}

// policy is the i-th policy: in each direction 5 ports, 5 ranges, 5 networks, and pods of the namespace and of all.
func (s *shape) policy(i int) operation {
	namespace, subject, peer := fmt.Sprint("n", i%podNamespaces), object{}, object{"matchLabels": object{"app": fmt.Sprint(i % 7)}}
	switch {
	case s.labelSets > 0:
		subject = object{"matchLabels": object{"set": fmt.Sprint(i % s.labelSets)}}
		peer = object{"matchLabels": object{"set": fmt.Sprint((i + 1) % s.labelSets)}}
	case s.big && i >= 200:
		namespace = fmt.Sprint("m", i%500)
	}
	peers := []any{object{"podSelector": peer}, object{"namespaceSelector": object{}, "podSelector": peer}}
	var ports []any
	for j := range 5 {
		ports = append(ports, object{"protocol": "TCP", "port": 100 + i%50 + j}, object{"protocol": "TCP", "port": 1000 * (j + 1), "endPort": 1000*(j+1) + 1 + i%50})
		peers = append(peers, object{"ipBlock": object{"cidr": fmt.Sprintf("198.%d.%d.0/24", 18+i%2, (i/2+j)%256)}})
	}
	return storedPolicy(namespace, fmt.Sprint("policy-", i), object{
		"podSelector": subject, "policyTypes": []any{"Ingress", "Egress"},
		"ingress": []any{object{"from": peers, "ports": ports}}, "egress": []any{object{"to": peers, "ports": ports}},
	})
}

// allow is a policy that allows TCP connections of all pods to a port.
func allow(port int) object {
	all, ports := []any{object{"namespaceSelector": object{}}}, []any{object{"protocol": "TCP", "port": port}}
	return object{
		"podSelector": object{}, "policyTypes": []any{"Ingress", "Egress"},
		"ingress": []any{object{"from": all, "ports": ports}}, "egress": []any{object{"to": all, "ports": ports}},
	}
}

// probeSpec is the last policy of the namespace n0 and allows one of policyPorts.
func probeSpec(open int) string {
	spec := allow(lastPort)
	from := func(peer object, port int) object {
		return object{"from": []any{peer}, "ports": []any{object{"protocol": "UDP", "port": port}}}
	}
	role := func(v string) object {
		return object{"namespaceSelector": object{}, "podSelector": object{"matchLabels": object{"role": v}}}
	}
	zone := func(v string) object { return object{"namespaceSelector": object{"matchLabels": object{"zone": v}}} }
	spec["ingress"] = append(spec["ingress"].([]any), from(object{"namespaceSelector": object{}}, policyPorts()[open]),
		from(role("a"), 7002), from(role("b"), 7003), from(zone("a"), 7004), from(zone("b"), 7005))
	return jsonText(object{"spec": spec})
}
