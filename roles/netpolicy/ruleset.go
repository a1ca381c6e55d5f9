package netpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
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
	t.podChains = map[string][]*podfilter.Chain{}
	r := &podfilter.Ruleset{
		Sets: map[string]*podfilter.Set{}, Chains: map[string]*podfilter.Chain{}, Pods: map[netip.Addr]podfilter.Pod{},
		Pending: map[netip.Addr]podfilter.Pod{},
		Form:    podfilter.Form{KeepEstablished: t.KeepEstablished},
	}
	used := map[string]*group{}
	networks, shared := t.networks(), t.shared()
	t.selected, t.conflicts = map[string]string{}, map[string]string{}
	for _, l := range t.local {
		if l.Network != "" && !networks[l.Network] {
			continue
		}
		pod := podfilter.Pod{Label: l.Label, Port: l.Port, Bridge: l.Bridge, Egress: t.chainOf(l, Egress, r, used, chains), Ingress: t.chainOf(l, Ingress, r, used, chains)}
		if pod.Egress == "" && pod.Ingress == "" {
			continue
		}
		t.selected[l.Label] = t.title(l)
		pods := r.Pods
		if l.Pending {
			pods = r.Pending
		}
		for _, a := range l.Addresses {
			one := pod
			if holders := shared[a]; holders != "" {
				one.Egress, one.Ingress = podfilter.Deny, podfilter.Deny
				t.conflicts[l.Label] = fmt.Sprintf("network policies select %s, and the node's packet filter knows pods by their addresses: %s is that of %s", t.title(l), a, holders)
			}
			if have, ok := pods[a]; !ok || have.Label > one.Label {
				pods[a] = one
			}
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

// title returns an attachment as people know it.
func (t *Table) title(l Local) string {
	text := l.Namespace + "/" + l.Name
	if p := t.pods[l.Namespace][l.Name]; p != nil {
		text = p.Title()
	}
	if l.Network != "" {
		text += " on " + l.Network
	}
	return text
}

// networks returns the networks that policies are for, besides that of the cluster.
func (t *Table) networks() map[string]bool {
	all := map[string]bool{}
	for _, of := range t.policies {
		for _, p := range of {
			all[p.Network] = true
		}
	}
	return all
}

// shared returns the addresses that attachments of this node have on several networks, with the titles of the attachments.
func (t *Table) shared() map[netip.Addr]string {
	holders, titles := map[netip.Addr][]Local{}, map[netip.Addr]string{}
	for _, l := range t.local {
		for _, a := range l.Addresses {
			holders[a] = append(holders[a], l)
		}
	}
	for a, all := range holders {
		if !slices.ContainsFunc(all, func(l Local) bool { return l.Network != all[0].Network }) {
			continue
		}
		var names []string
		for _, l := range all {
			names = append(names, t.title(l))
		}
		titles[a] = strings.Join(slices.Sorted(slices.Values(names)), " and of ")
	}
	return titles
}

// Selected returns the titles of the attachments that policies select, or whose pods are not known, by their labels.
func (t *Table) Selected() map[string]string {
	t.Ruleset()
	return t.selected
}

// Conflicts returns why the policies of attachments cannot be enforced, by their labels. Their addresses are denied everything.
func (t *Table) Conflicts() map[string]string {
	t.Ruleset()
	return t.conflicts
}

// chainOf returns the name of the chain of an attachment in one direction, and adds the chain and what it needs to a
// Ruleset. It returns "" if no policy selects the pod in that direction.
func (t *Table) chainOf(l Local, d Direction, r *podfilter.Ruleset, used map[string]*group, old map[string][]*podfilter.Chain) string {
	p := t.pods[l.Namespace][l.Name]
	if p == nil || !p.Is(l.UID) || l.Network == "" && !t.knowsSubjects(p.Namespace) {
		r.Form.Node = r.Form.Node || len(t.cluster) > 0
		return podfilter.Deny
	}
	var tiers Tiers
	for _, policy := range t.selecting(p, l.Network, d) {
		c := policy.compile(d)
		t.include(c, r, used)
		tiers.Isolating = append(tiers.Isolating, Chosen{policy.Namespace + "/" + policy.Name, c.name})
	}
	admin, baseline := t.clusterSelecting(p, l.Network, d)
	if len(tiers.Isolating) > 0 {
		baseline = nil
	}
	r.Form.Node = r.Form.Node || d == Egress && len(admin)+len(baseline) > 0
	for _, policy := range append(baseline, admin...) {
		t.include(policy.compile(d, tiers.add(policy.Name, policy.Admin, policy.chain(d))), r, used)
	}
	text := fmt.Sprintf("%q", tiers)
	chains := t.podChains[text]
	if chains == nil {
		chains = old[text]
	}
	if chains == nil {
		chains = tiers.PodChains()
	}
	t.podChains[text] = chains
	if len(chains) == 0 {
		return ""
	}
	for _, c := range chains {
		r.Chains[c.Name] = c
	}
	return chains[0].Name
}

// include adds the objects of a policy to a Ruleset.
func (t *Table) include(c *compiled, r *podfilter.Ruleset, used map[string]*group) {
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

// selecting returns the policies that isolate a pod on a network in one direction, by their names.
func (t *Table) selecting(p *Pod, network string, d Direction) (all []*Policy) {
	of := t.policies[p.Namespace]
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if policy := of[name]; policy.Network == network && policy.Isolates[d] && policy.Pods.Matches(p.Labels) {
			all = append(all, policy)
		}
	}
	return all
}

// clusterSelecting returns the policies of both tiers that have rules for a pod in one direction, in the order of evaluation. They are
// for the cluster's network.
func (t *Table) clusterSelecting(p *Pod, network string, d Direction) (admin, baseline []*ClusterPolicy) {
	if len(t.cluster) == 0 || network != "" {
		return nil, nil
	}
	labels := t.labelsOf(p.Namespace)
	for _, policy := range t.clusterInOrder() {
		switch {
		case len(policy.Rules[d]) == 0 || !policy.Namespaces.Matches(labels) || !policy.Pods.Matches(p.Labels):
		case policy.Admin:
			admin = append(admin, policy)
		default:
			baseline = append(baseline, policy)
		}
	}
	return admin, baseline
}

// clusterInOrder returns all cluster policies by priority and name.
func (t *Table) clusterInOrder() []*ClusterPolicy {
	if t.inOrder == nil {
		t.inOrder = slices.Collect(maps.Values(t.cluster))
		sorting.Func(t.inOrder, func(a, b *ClusterPolicy) int {
			return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
		})
	}
	return t.inOrder
}

// knowsSubjects reports whether the Table can tell which cluster policies select the pods of a namespace.
func (t *Table) knowsSubjects(namespace string) bool {
	return len(t.cluster) == 0 || t.ImplicitNamespaces || t.namespaces[namespace] != nil
}
