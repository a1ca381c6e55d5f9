package netpolicy

import (
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/podfilter"
)

// Saved is what an ADD needs to choose a pod's chains without the agent. The agent writes it after each change.
type Saved struct {
	// FromFiles is true if policies are files. Then a pod's labels are those that its ADD has. Otherwise they are those in
	// Pods, by namespace/name.
	FromFiles bool `json:"fromFiles,omitempty"`
	// Policies are all that select a pod of Pods, and perhaps others.
	Policies []SavedPolicy       `json:"policies,omitempty"`
	Pods     map[string]SavedPod `json:"pods,omitempty"`
	// Cluster are the cluster policies in the order of evaluation. Namespaces has the labels that they select by.
	Cluster    []SavedCluster               `json:"cluster,omitempty"`
	Namespaces map[string]map[string]string `json:"namespaces,omitempty"`
}

// SavedCluster is a cluster policy as far as it selects pods.
type SavedCluster struct {
	Name       string   `json:"name"`
	Admin      bool     `json:"admin,omitempty"`
	Namespaces Selector `json:"namespaces,omitempty"`
	Pods       Selector `json:"pods,omitempty"`
	// Egress and Ingress are nil in a direction in which the policy has no rules.
	Egress  *SavedChain `json:"egress,omitempty"`
	Ingress *SavedChain `json:"ingress,omitempty"`
}

// SavedChain is the chain of a cluster policy. If Passes is true, its name also follows from the verdict that leads to the
// next tier.
type SavedChain struct {
	Name   string `json:"name"`
	Passes bool   `json:"passes,omitempty"`
}

// SavedPolicy is a policy as far as it selects pods.
type SavedPolicy struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Network   string   `json:"network,omitempty"`
	Pods      Selector `json:"pods,omitempty"`
	// Egress and Ingress are the names of the policy's chains. They are nil in a direction in which the policy does not
	// isolate pods, and "" in one in which it allows nothing.
	Egress  *string `json:"egress,omitempty"`
	Ingress *string `json:"ingress,omitempty"`
}

// SavedPod is a pod of this node.
type SavedPod struct {
	UID       string            `json:"uid"`
	StaticUID string            `json:"staticUID,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Save returns what an ADD needs, and sets IsSaved. Changes of the Table do not change it.
func (t *Table) Save(fromFiles bool) *Saved {
	t.IsSaved = true
	s := &Saved{FromFiles: fromFiles, Pods: make(map[string]SavedPod, len(t.own))}
	labels := map[string][]map[string]string{} // of the pods of this node, by namespace
	for key, p := range t.own {
		s.Pods[key] = p.savedPod()
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

func (p *Pod) savedPod() SavedPod { return SavedPod{p.UID, p.StaticUID, p.Labels} }

func (p SavedPod) equal(o SavedPod) bool {
	return p.UID == o.UID && p.StaticUID == o.StaticUID && equalLabels(p.Labels, o.Labels)
}

func (p *Policy) saved() SavedPolicy {
	s := SavedPolicy{Namespace: p.Namespace, Name: p.Name, Network: p.Network, Pods: p.Pods}
	for d, chain := range map[Direction]**string{Egress: &s.Egress, Ingress: &s.Ingress} {
		if p.Isolates[d] {
			*chain = p.chainName(d)
		}
	}
	return s
}

func (p *ClusterPolicy) saved() SavedCluster {
	s := SavedCluster{Name: p.Name, Admin: p.Admin, Namespaces: p.Namespaces, Pods: p.Pods}
	for d, chain := range map[Direction]**SavedChain{Egress: &s.Egress, Ingress: &s.Ingress} {
		if len(p.Rules[d]) > 0 {
			*chain = p.chain(d)
		}
	}
	return s
}

// Choose returns the chains of a pod on a network, which is "" for that of the cluster. A pod that is not known gets the chain that drops
// everything.
func (s *Saved) Choose(namespace, name, uid, network string, labels map[string]string) (egress, ingress string) {
	if network != "" && !slices.ContainsFunc(s.Policies, func(p SavedPolicy) bool { return p.Network == network }) {
		return "", ""
	}
	if !s.FromFiles {
		p, known := s.Pods[namespace+"/"+name]
		if !known || !(&Pod{UID: p.UID, StaticUID: p.StaticUID}).Is(uid) {
			return podfilter.Deny, podfilter.Deny
		}
		labels = p.Labels
	}
	of, known := s.Namespaces[namespace]
	switch {
	case known:
	case len(s.Cluster) > 0 && !s.FromFiles && network == "":
		return podfilter.Deny, podfilter.Deny
	default:
		of = map[string]string{NameLabel: namespace}
	}
	var tiers [2]Tiers
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Namespace != namespace || p.Network != network || !p.Pods.Matches(labels) {
			continue
		}
		for d, chain := range []*string{Egress: p.Egress, Ingress: p.Ingress} {
			if chain != nil {
				tiers[d].Isolating = append(tiers[d].Isolating, Chosen{namespace + "/" + p.Name, *chain})
			}
		}
	}
	for d := range tiers {
		sorting.Func(tiers[d].Isolating, func(a, b Chosen) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, admin := range []bool{false, true} {
		for i := range s.Cluster {
			p := &s.Cluster[i]
			if p.Admin != admin || network != "" || !p.Namespaces.Matches(of) || !p.Pods.Matches(labels) {
				continue
			}
			for d, chain := range []*SavedChain{Egress: p.Egress, Ingress: p.Ingress} {
				if t := &tiers[d]; chain != nil && (admin || len(t.Isolating) == 0) {
					t.add(p.Name, admin, chain)
				}
			}
		}
	}
	var names [2]string
	for d := range tiers {
		if chains := tiers[d].PodChains(); len(chains) > 0 {
			names[d] = chains[0].Name
		}
	}
	return names[Egress], names[Ingress]
}
