// Package choice chooses the chains of a pod by the policies that the agent saved, for an ADD that the agent does not answer.
package choice

import (
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// Saved is what an ADD needs to choose a pod's chains without the agent. The agent writes it after each change.
type Saved struct {
	// FromFiles is true if policies are files. Then a pod's labels are those that its ADD has. Otherwise they are those in
	// Pods, by namespace/name.
	FromFiles bool `json:"fromFiles,omitempty"`
	// Policies are all that select a pod of Pods, and perhaps others.
	Policies []Policy       `json:"policies,omitempty"`
	Pods     map[string]Pod `json:"pods,omitempty"`
	// Cluster are the cluster policies in the order of evaluation. Namespaces has the labels that they select by.
	Cluster    []Cluster                    `json:"cluster,omitempty"`
	Namespaces map[string]map[string]string `json:"namespaces,omitempty"`
}

// Cluster is a cluster policy as far as it selects pods.
type Cluster struct {
	Name       string         `json:"name"`
	Admin      bool           `json:"admin,omitempty"`
	Namespaces label.Selector `json:"namespaces,omitempty"`
	Pods       label.Selector `json:"pods,omitempty"`
	// Egress and Ingress are nil in a direction in which the policy has no rules.
	Egress  *podchain.ClusterChain `json:"egress,omitempty"`
	Ingress *podchain.ClusterChain `json:"ingress,omitempty"`
}

// Policy is a policy as far as it selects pods.
type Policy struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Network   string         `json:"network,omitempty"`
	Pods      label.Selector `json:"pods,omitempty"`
	// Egress and Ingress are the names of the policy's chains. They are nil in a direction in which the policy does not
	// isolate pods, and "" in one in which it allows nothing.
	Egress  *string `json:"egress,omitempty"`
	Ingress *string `json:"ingress,omitempty"`
}

// Pod is a pod of this node.
type Pod struct {
	UID       string            `json:"uid"`
	StaticUID string            `json:"staticUID,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Is reports whether a pod has a UID. A runtime has another UID of a static pod than the API: the hash of its file.
// An attachment that was recorded without a UID is of any pod of its name.
func (p *Pod) Is(uid string) bool {
	return uid == "" || uid == p.UID || uid == p.StaticUID && p.StaticUID != ""
}

// Equal reports whether Choose sees no difference between two pods.
func (p *Pod) Equal(o *Pod) bool {
	return p.UID == o.UID && p.StaticUID == o.StaticUID && maps.Equal(p.Labels, o.Labels)
}

// Choose returns the chains of a pod on a network, which is "" for that of the cluster. A pod that is not known gets the chain that drops
// everything.
func (s *Saved) Choose(namespace, name, uid, network string, labels map[string]string) (egress, ingress string) {
	if network != "" && !slices.ContainsFunc(s.Policies, func(p Policy) bool { return p.Network == network }) {
		return "", ""
	}
	if !s.FromFiles {
		p, known := s.Pods[namespace+"/"+name]
		if !known || !p.Is(uid) {
			return podchain.Deny, podchain.Deny
		}
		labels = p.Labels
	}
	of, known := s.Namespaces[namespace]
	switch {
	case known:
	case len(s.Cluster) > 0 && !s.FromFiles && network == "":
		return podchain.Deny, podchain.Deny
	default:
		of = map[string]string{label.Namespace: namespace}
	}
	var tiers [2]podchain.Tiers // of egress and ingress
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Namespace != namespace || p.Network != network || !p.Pods.Matches(labels) {
			continue
		}
		for d, chain := range []*string{p.Egress, p.Ingress} {
			if chain != nil {
				tiers[d].Isolating = append(tiers[d].Isolating, podchain.Chosen{Name: namespace + "/" + p.Name, Chain: *chain})
			}
		}
	}
	for d := range tiers {
		sorting.Func(tiers[d].Isolating, func(a, b podchain.Chosen) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, admin := range []bool{false, true} {
		for i := range s.Cluster {
			p := &s.Cluster[i]
			if p.Admin != admin || network != "" || !p.Namespaces.Matches(of) || !p.Pods.Matches(labels) {
				continue
			}
			for d, chain := range []*podchain.ClusterChain{p.Egress, p.Ingress} {
				if t := &tiers[d]; chain != nil && (admin || len(t.Isolating) == 0) {
					t.Add(p.Name, admin, chain)
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
	return names[0], names[1]
}
