package netpolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops/podfilter"
)

// Ruleset returns what the kernel should have. It shares its sets with the Table. A pod that the source does not know is
// denied everything.
//
// It is the same value as before if only members of its sets have changed.
func (t *Table) Ruleset() *podfilter.Ruleset {
	if t.ruleset != nil {
		return t.ruleset
	}
	chains := t.podChains
	t.podChains = map[string]*podfilter.Chain{}
	r := &podfilter.Ruleset{
		Sets: map[string]*podfilter.Set{}, Chains: map[string]*podfilter.Chain{}, Pods: map[netip.Addr]podfilter.Pod{},
		Pending:         map[netip.Addr]podfilter.Pod{},
		KeepEstablished: t.KeepEstablished,
	}
	used := map[string]*group{}
	for _, l := range t.local {
		pod := podfilter.Pod{Label: l.Label, Port: l.Port, Bridge: l.Bridge, Egress: t.chainOf(l, Egress, r, used, chains), Ingress: t.chainOf(l, Ingress, r, used, chains)}
		if pod.Egress == "" && pod.Ingress == "" {
			continue
		}
		pods := r.Pods
		if l.Pending {
			pods = r.Pending
		}
		for _, a := range l.Addresses {
			pods[a] = pod
		}
	}
	for _, g := range used {
		for _, s := range g.sets {
			r.Sets[s.Name] = s
		}
	}
	t.groups, t.ruleset = used, r
	return r
}

// chainOf returns the name of the chain of an attachment in one direction, and adds the chain and what it needs to a
// Ruleset. It returns "" if no policy isolates the pod in that direction.
func (t *Table) chainOf(l Local, d Direction, r *podfilter.Ruleset, used map[string]*group, chains map[string]*podfilter.Chain) string {
	p := t.pods[l.Namespace][l.Name]
	if p == nil || !p.Is(l.UID) {
		return podfilter.Deny
	}
	var chosen []Chosen
	for _, policy := range t.selecting(p, d) {
		c := policy.compile(d)
		chosen = append(chosen, Chosen{policy.Namespace + "/" + policy.Name, policy.chain(d)})
		for _, ch := range c.chains {
			r.Chains[ch.Name] = ch
		}
		for _, s := range c.ports {
			if r.Sets[s.Name] == nil {
				r.Sets[s.Name] = s
			}
		}
		for _, k := range c.groups {
			text := k.text()
			if used[text] != nil {
				continue
			}
			used[text] = t.groups[text]
			if used[text] == nil {
				used[text] = t.newGroup(k)
			}
		}
	}
	if len(chosen) == 0 {
		return ""
	}
	text := fmt.Sprint(chosen)
	own := t.podChains[text]
	if own == nil {
		own = chains[text]
	}
	if own == nil {
		own = PodChain(chosen)
	}
	t.podChains[text] = own
	r.Chains[own.Name] = own
	return own.Name
}

// selecting returns the policies that isolate a pod in one direction, by their names.
func (t *Table) selecting(p *Pod, d Direction) (all []*Policy) {
	of := t.policies[p.Namespace]
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if policy := of[name]; policy.Isolates[d] && policy.Pods.Matches(p.Labels) {
			all = append(all, policy)
		}
	}
	return all
}
