package netpolicy

import (
	"maps"
	"slices"

	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
)

// Save returns what an ADD needs, and sets IsSaved. Changes of the Table do not change it.
func (t *Table) Save(fromFiles bool) *choice.Saved {
	t.IsSaved = true
	s := &choice.Saved{FromFiles: fromFiles, Pods: make(map[string]choice.Pod, len(t.own))}
	labels := map[string][]map[string]string{} // of the pods of this node, by namespace
	for key, p := range t.own {
		s.Pods[key] = *p.saved()
		labels[p.Namespace] = append(labels[p.Namespace], p.Labels)
	}
	for _, namespace := range slices.Sorted(maps.Keys(t.policies)) {
		of := t.policies[namespace]
		for _, name := range slices.Sorted(maps.Keys(of)) {
			p := of[name]
			if fromFiles || p.Network != "" || slices.ContainsFunc(labels[namespace], p.Pods.Matches) {
				s.Policies = append(s.Policies, p.saved())
			}
		}
	}
	if len(t.cluster) > 0 {
		s.Namespaces = maps.Clone(t.namespaces)
	}
	for _, p := range t.clusterInOrder() {
		s.Cluster = append(s.Cluster, p.saved())
	}
	return s
}

func (p *Pod) saved() *choice.Pod {
	return &choice.Pod{UID: p.UID, StaticUID: p.StaticUID, Labels: p.Labels}
}

func (p *Policy) saved() choice.Policy {
	s := choice.Policy{Namespace: p.Namespace, Name: p.Name, Network: p.Network, Pods: p.Pods}
	for d, chain := range map[Direction]**string{Egress: &s.Egress, Ingress: &s.Ingress} {
		if p.Isolates[d] {
			*chain = p.chainName(d)
		}
	}
	return s
}

func (p *ClusterPolicy) saved() choice.Cluster {
	s := choice.Cluster{Name: p.Name, Admin: p.Admin, Namespaces: p.Namespaces, Pods: p.Pods}
	for d, chain := range map[Direction]**podchain.ClusterChain{Egress: &s.Egress, Ingress: &s.Ingress} {
		if len(p.Rules[d]) > 0 {
			*chain = p.chain(d)
		}
	}
	return s
}
