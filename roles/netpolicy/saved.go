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
	FromFiles bool                `json:"fromFiles,omitempty"`
	Policies  []SavedPolicy       `json:"policies,omitempty"`
	Pods      map[string]SavedPod `json:"pods,omitempty"`
}

// SavedPolicy is a policy as far as it selects pods.
type SavedPolicy struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Pods      []SavedRequirement `json:"pods,omitempty"`
	// Egress and Ingress are the names of the policy's chains. They are nil in a direction in which the policy does not
	// isolate pods, and "" in one in which it allows nothing.
	Egress  *string `json:"egress,omitempty"`
	Ingress *string `json:"ingress,omitempty"`
}

// SavedRequirement is a condition of a selector.
type SavedRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// SavedPod is a pod of this node.
type SavedPod struct {
	UID       string            `json:"uid"`
	StaticUID string            `json:"staticUID,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Save returns what an ADD needs, or nil if it is the same as what it returned last.
func (t *Table) Save(fromFiles bool) *Saved {
	if t.isSaved {
		return nil
	}
	t.isSaved = true
	s := &Saved{FromFiles: fromFiles, Pods: map[string]SavedPod{}}
	for _, namespace := range slices.Sorted(maps.Keys(t.policies)) {
		of := t.policies[namespace]
		for _, name := range slices.Sorted(maps.Keys(of)) {
			s.Policies = append(s.Policies, of[name].saved())
		}
	}
	if fromFiles {
		return s
	}
	for _, of := range t.pods {
		for _, p := range of {
			if t.OnNode(p) {
				s.Pods[p.Key()] = p.savedPod()
			}
		}
	}
	return s
}

func (p *Pod) savedPod() SavedPod { return SavedPod{p.UID, p.StaticUID, p.Labels} }

func (p SavedPod) equal(o SavedPod) bool {
	return p.UID == o.UID && p.StaticUID == o.StaticUID && equalLabels(p.Labels, o.Labels)
}

func (p *Policy) saved() SavedPolicy {
	s := SavedPolicy{Namespace: p.Namespace, Name: p.Name}
	for _, r := range p.Pods.requirements {
		s.Pods = append(s.Pods, SavedRequirement{r.key, r.operator, r.values})
	}
	for d, chain := range map[Direction]**string{Egress: &s.Egress, Ingress: &s.Ingress} {
		if p.Isolates[d] {
			name := p.chain(d)
			*chain = &name
		}
	}
	return s
}

// chain returns the name of the policy's chain, or "" if it allows nothing.
func (p *Policy) chain(d Direction) string {
	if c := p.compile(d); len(c.chains) > 0 {
		return c.chains[0].Name
	}
	return ""
}

// Choose returns the chains of a pod. A pod that is not known gets the chain that drops everything.
func (s *Saved) Choose(namespace, name, uid string, labels map[string]string) (egress, ingress string) {
	if !s.FromFiles {
		p, known := s.Pods[namespace+"/"+name]
		if !known || !(&Pod{UID: p.UID, StaticUID: p.StaticUID}).Is(uid) {
			return podfilter.Deny, podfilter.Deny
		}
		labels = p.Labels
	}
	var chosen [2][]Chosen
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Namespace != namespace || !p.selects(labels) {
			continue
		}
		for d, chain := range []*string{Egress: p.Egress, Ingress: p.Ingress} {
			if chain != nil {
				chosen[d] = append(chosen[d], Chosen{namespace + "/" + p.Name, *chain})
			}
		}
	}
	var names [2]string
	for d, all := range chosen {
		if len(all) > 0 {
			sorting.Func(all, func(a, b Chosen) int { return strings.Compare(a.Name, b.Name) })
			names[d] = PodChain(all).Name
		}
	}
	return names[Egress], names[Ingress]
}

func (p *SavedPolicy) selects(labels map[string]string) bool {
	var s Selector
	for _, r := range p.Pods {
		s.requirements = append(s.requirements, requirement{r.Key, r.Operator, r.Values})
	}
	return s.Matches(labels)
}
