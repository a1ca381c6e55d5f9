package netpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/podchain"
	"github.com/cnibox/cnibox/netops/podfilter"
)

// Ruleset returns what the kernel should have. It shares its sets with the Table. A pod that the source does not know is
// denied everything.
//
// It is the same value as before, changed, unless the change concerns all pods.
func (t *Table) Ruleset() *podfilter.Ruleset {
	if t.ruleset != nil && len(t.stale) == 0 {
		return t.ruleset
	}
	shared := t.shared()
	if t.ruleset == nil || len(t.cluster)+len(shared)+len(t.conflicts) > 0 {
		t.ruleset, t.uses, t.unitUsers = podfilter.NewRuleset(), map[string]use{}, map[*compiled]int{}
		t.ruleset.Form.KeepEstablished, t.ruleset.Form.Log = t.KeepEstablished, t.LogDenied
		t.selected, t.conflicts = map[string]string{}, map[string]string{}
		for _, g := range t.groups {
			g.users = 0
		}
		t.makeStale(func(Local) bool { return true })
		for key := range t.own {
			t.stale[expectedLabel(key)] = struct{}{}
		}
	}
	t.podChains = map[string]*compiled{}
	var before []use
	for label := range t.stale {
		if old, has := t.uses[label]; has {
			t.ruleset.RemovePods(label, old.addresses)
			delete(t.uses, label)
			delete(t.selected, label)
			before = append(before, old)
		}
	}
	for label := range t.stale {
		if l, ok := t.attachment(label); ok && t.arePoliciesFor(l.Network) {
			t.uses[label] = t.put(l, shared)
		}
	}
	for _, old := range before { // last, so that what is used again does not go
		t.leave(old.units)
	}
	maps.DeleteFunc(t.groups, func(_ string, g *group) bool { return g.users == 0 })
	clear(t.stale)
	return t.ruleset
}

// use is what the Ruleset has for an attachment.
type use struct {
	units     []*compiled
	addresses []netip.Addr
}

// makeStale makes the next Ruleset compute some attachments again, with those that have one of their addresses.
func (t *Table) makeStale(is func(Local) bool) {
	addresses := map[netip.Addr]bool{}
	for label, l := range t.local {
		if is(l) {
			t.stale[label] = struct{}{}
			for _, a := range l.Addresses {
				addresses[a] = true
			}
		}
	}
	for label, l := range t.local {
		if slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return addresses[a] }) {
			t.stale[label] = struct{}{}
		}
	}
}

// put adds an attachment to the Ruleset.
func (t *Table) put(l Local, shared map[netip.Addr]string) (u use) {
	u.addresses = l.Addresses
	pod := podfilter.Pod{Label: l.Label, Port: l.Port, Bridge: l.Bridge, Egress: t.chainOf(l, Egress, &u), Ingress: t.chainOf(l, Ingress, &u)}
	if pod.Egress == "" && pod.Ingress == "" {
		return u
	}
	t.selected[l.Label] = t.title(l)
	pods := t.ruleset.Pods
	if l.Pending {
		pods = t.ruleset.Pending
	}
	for _, a := range l.Addresses {
		one := pod
		if holders := shared[a]; holders != "" {
			one.Egress, one.Ingress = podfilter.Deny, podfilter.Deny
			t.conflicts[l.Label] = fmt.Sprintf("network policies select %s, and the node's packet filter knows pods by their addresses: %s is that of %s", t.title(l), a, holders)
		}
		if have, ok := pods[a]; !ok || have.Label > one.Label {
			t.ruleset.PutPod(a, one, l.Pending)
		}
	}
	return u
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

// arePoliciesFor reports whether policies can select pods on a network: others than the cluster's need a policy that names them.
func (t *Table) arePoliciesFor(network string) bool {
	if network == "" {
		return true
	}
	for _, of := range t.policies {
		for _, p := range of {
			if p.Network == network {
				return true
			}
		}
	}
	return false
}

// shared returns the addresses that attachments of this node have on several networks, with the titles of the attachments.
func (t *Table) shared() map[netip.Addr]string {
	holders, titles := map[netip.Addr][]Local{}, map[netip.Addr]string{}
	onOthers := false
	for _, l := range t.local {
		onOthers = onOthers || l.Network != ""
	}
	if !onOthers {
		return nil
	}
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

// chainOf returns the name of the chain of an attachment in one direction, and adds what it needs to the Ruleset and to u. It returns ""
// if no policy selects the pod in that direction.
func (t *Table) chainOf(l Local, d Direction, u *use) string {
	form := &t.ruleset.Form
	p := t.pods[l.Namespace][l.Name]
	if p == nil || !p.Is(l.UID) || l.Network == "" && !t.knowsSubjects(p.Namespace) {
		form.Node = form.Node || len(t.cluster) > 0
		return podfilter.Deny
	}
	var tiers podchain.Tiers
	for _, policy := range t.selecting(p, l.Network, d) {
		c := policy.compile(d)
		t.join(c, u)
		tiers.Isolating = append(tiers.Isolating, podchain.Chosen{Name: policy.Namespace + "/" + policy.Name, Chain: c.name})
	}
	admin, baseline := t.clusterSelecting(p, l.Network, d)
	if len(tiers.Isolating) > 0 {
		baseline = nil
	}
	form.Node = form.Node || d == Egress && len(admin)+len(baseline) > 0
	for _, policy := range append(baseline, admin...) {
		t.join(policy.compile(d, tiers.Add(policy.Name, policy.Admin, policy.chain(d))), u)
	}
	text := fmt.Sprintf("%d %q", d, tiers)
	own := t.podChains[text]
	if own == nil {
		own = t.podObjects(&tiers, l.Namespace, d)
		t.podChains[text] = own
	}
	if len(own.chains) == 0 {
		return ""
	}
	t.join(own, u)
	return own.chains[0].Name
}

// join adds the objects of a unit to the Ruleset.
func (t *Table) join(c *compiled, u *use) {
	u.units = append(u.units, c)
	t.unitUsers[c]++
	if t.unitUsers[c] > 1 {
		return
	}
	t.ruleset.Use(c.chains, c.ranges)
	for _, k := range c.groups {
		text := k.text()
		g := t.groups[text]
		if g == nil {
			g = t.newGroup(k)
			t.groups[text] = g
		}
		g.users++
		t.ruleset.Use(nil, g.sets[:])
	}
}

// leave reverts joins.
func (t *Table) leave(units []*compiled) {
	for _, c := range units {
		t.unitUsers[c]--
		if t.unitUsers[c] > 0 {
			continue
		}
		delete(t.unitUsers, c)
		t.ruleset.Leave(c.chains, c.ranges)
		for _, k := range c.groups {
			g := t.groups[k.text()]
			g.users--
			t.ruleset.Leave(nil, g.sets[:])
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
