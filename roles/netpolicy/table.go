package netpolicy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// Table has the objects of a source and the pods of this node. It is not safe for concurrent use.
type Table struct {
	// KeepEstablished and LogDenied are those of the Ruleset.
	KeepEstablished, LogDenied bool
	// OnNode reports whether a pod may be attached on this node. Such pods are saved, and their chains are made before their ADD asks.
	OnNode func(*Pod) bool
	// IsSaved is true if Save would return the same again.
	IsSaved bool
	// ImplicitNamespaces is true if namespaces exist that the source does not name. These have no labels but label.Namespace.
	ImplicitNamespaces bool
	// namespaces has the labels of namespaces.
	namespaces map[string]map[string]string
	pods       map[string]map[string]*Pod // by namespace and name
	policies   map[string]map[string]*Policy
	nodes      map[string]*Node
	cluster    map[string]*ClusterPolicy
	// inOrder are the cluster policies in the order of evaluation, or nil after a change.
	inOrder []*ClusterPolicy
	// local are the attachments of this node by their labels, and addresses those of their pods by namespace/name.
	local     map[string]Local
	addresses map[string][]localPod
	// own are the pods that OnNode reports, by namespace/name.
	own map[string]*Pod
	// given has what PutGiven was called with, by node.
	given map[string]map[string]Given
	// faults has what SetFault was called with, by object.
	faults map[string]*Fault
	// groups are the groups that chains use.
	groups map[string]*group
	// selected are the titles of attachments that policies select, and conflicts has why these cannot be enforced. Both are by label and
	// belong to ruleset.
	selected, conflicts map[string]string
	// podChains are the chains of pods by the policies that select them, while a Ruleset is computed.
	podChains map[string]*compiled
	// ruleset is the last Ruleset. It is nil after a change that may concern all attachments, and stale has the labels of those that other
	// changes concern.
	ruleset *podfilter.Ruleset
	stale   map[string]struct{}
	// uses is what ruleset has for each attachment by label, and unitUsers how many uses each unit has.
	uses      map[string]use
	unitUsers map[*compiled]int
}

// Local is an attachment of a pod of this node.
type Local struct {
	// Label is that of the attachment's objects.
	Label                string
	Namespace, Name, UID string
	// Network is that of the attachment if it is another one than the cluster's.
	Network   string
	Addresses []netip.Addr
	// Port and Bridge are those of the podfilter.Pod.
	Port, Bridge string
	// Pending is true until ADD has recorded the attachment, and has asked for its elements or added them.
	Pending bool
	// isElsewhere is true for a pod of another node.
	isElsewhere bool
}

// localPod has what an attachment tells of a pod. While a pod replaces one of its name, two attachments have the name.
type localPod struct {
	uid, network string
	addresses    []netip.Addr
}

// group is a group of pods with its sets of both families.
type group struct {
	key  groupKey
	sets [2]*podfilter.Set
	// users is the number of units that use the sets.
	users int
}

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{
		OnNode:     func(*Pod) bool { return true },
		namespaces: map[string]map[string]string{}, pods: map[string]map[string]*Pod{}, policies: map[string]map[string]*Policy{},
		nodes: map[string]*Node{}, cluster: map[string]*ClusterPolicy{}, local: map[string]Local{}, addresses: map[string][]localPod{}, own: map[string]*Pod{}, groups: map[string]*group{},
		given: map[string]map[string]Given{}, faults: map[string]*Fault{}, stale: map[string]struct{}{},
	}
}

// PutNamespace adds or changes a namespace.
func (t *Table) PutNamespace(name string, labels map[string]string) {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[label.Namespace] = name
	t.setNamespace(name, labels)
}

// RemoveNamespace forgets the labels of a namespace.
func (t *Table) RemoveNamespace(name string) { t.setNamespace(name, nil) }

func (t *Table) setNamespace(name string, labels map[string]string) {
	if maps.Equal(t.namespaces[name], labels) {
		return
	}
	if len(t.cluster) > 0 {
		t.ruleset, t.IsSaved = nil, false
	}
	before := t.labelsOf(name)
	if labels == nil {
		delete(t.namespaces, name)
	} else {
		t.namespaces[name] = labels
	}
	now := t.labelsOf(name)
	for _, g := range t.groups {
		if g.key.selects == nil || g.key.selects[0].Matches(before) == g.key.selects[0].Matches(now) {
			continue // most groups
		}
		for _, p := range t.pods[name] {
			addresses, local := t.addressesOf(p, g.key.network)
			g.count(p, before, addresses, local, (*podfilter.Set).Remove)
			g.count(p, now, addresses, local, (*podfilter.Set).Add)
		}
	}
}

// labelsOf returns the labels of a namespace. One that is not known has the label that each has.
func (t *Table) labelsOf(namespace string) map[string]string {
	if l, ok := t.namespaces[namespace]; ok {
		return l
	}
	return map[string]string{label.Namespace: namespace}
}

// PutPod adds or changes a pod.
func (t *Table) PutPod(p *Pod) {
	old := t.pods[p.Namespace][p.Name]
	if old != nil && old.equal(p) {
		t.pods[p.Namespace][p.Name] = p // for its owner
		if t.own[p.Key()] != nil {
			t.own[p.Key()] = p
		}
		return
	}
	t.replacePod(old, p)
}

// RemovePod removes a pod.
func (t *Table) RemovePod(namespace, name string) {
	if old := t.pods[namespace][name]; old != nil {
		t.replacePod(old, nil)
	}
}

func (t *Table) replacePod(old, p *Pod) {
	for _, one := range []*Pod{old, p} {
		if one == nil {
			continue
		}
		if _, local := t.addresses[one.Key()]; local {
			t.makeStale(func(l Local) bool { return l.Namespace == one.Namespace && l.Name == one.Name })
		}
	}
	if old != nil {
		t.count(old, (*podfilter.Set).Remove)
		delete(t.pods[old.Namespace], old.Name)
	}
	if p != nil {
		if t.pods[p.Namespace] == nil {
			t.pods[p.Namespace] = map[string]*Pod{}
		}
		t.pods[p.Namespace][p.Name] = p
		t.count(p, (*podfilter.Set).Add)
	}
	key := cmp.Or(p, old).Key()
	was, is := t.own[key], p != nil && t.OnNode(p)
	if was == nil && !is {
		return
	}
	t.stale[expectedLabel(key)] = struct{}{}
	t.IsSaved = t.IsSaved && was != nil && is && was.saved().Equal(p.saved())
	delete(t.own, key)
	if is {
		t.own[key] = p
	}
}

// expectedLabel returns the label of the attachment that a pod of this node has until its ADD asks, and after its DEL. No other attachment has it.
func expectedLabel(key string) string { return expectedPrefix + key }

const expectedPrefix = "expected "

// attachment returns the attachment with a label. That of an expected pod has no addresses: it makes the kernel have the pod's chains, since to
// make them takes as long as ADD itself.
func (t *Table) attachment(label string) (l Local, ok bool) {
	key, isExpected := strings.CutPrefix(label, expectedPrefix)
	if !isExpected {
		l, ok = t.local[label]
		return l, ok
	}
	p := t.own[key]
	if p == nil || t.addresses[key] != nil || !p.hasAddresses() {
		return l, false
	}
	return Local{Label: label, Namespace: p.Namespace, Name: p.Name, UID: p.UID}, true
}

// Pod returns a pod, or nil.
func (t *Table) Pod(namespace, name string) *Pod { return t.pods[namespace][name] }

// Pods returns the keys of all pods.
func (t *Table) Pods() (all []*Pod) {
	for _, of := range t.pods {
		all = slices.AppendSeq(all, maps.Values(of))
	}
	return all
}

// Count returns the number of policies by kind.
func (t *Table) Count() map[string]int {
	n := 0
	for _, of := range t.policies {
		n += len(of)
	}
	return map[string]int{"NetworkPolicy": n, "ClusterNetworkPolicy": len(t.cluster)}
}

// Titles returns the names of the pods by their addresses.
func (t *Table) Titles() map[netip.Addr]string {
	titles := map[netip.Addr]string{}
	for _, of := range t.pods {
		for _, p := range of {
			for _, addresses := range append(slices.Collect(maps.Values(p.Networks)), p.Addresses) {
				for _, a := range addresses {
					if p.hasAddresses() {
						titles[a] = p.Title()
					}
				}
			}
		}
	}
	return titles
}

// PutPolicy adds or changes a policy.
func (t *Table) PutPolicy(p *Policy) {
	if t.policies[p.Namespace] == nil {
		t.policies[p.Namespace] = map[string]*Policy{}
	}
	t.policies[p.Namespace][p.Name] = p
	t.changePolicies(p.Namespace)
}

// changePolicies notes that the policies of a namespace have changed.
func (t *Table) changePolicies(namespace string) {
	t.makeStale(func(l Local) bool { return l.Namespace == namespace || l.Network != "" })
	for key, p := range t.own {
		if p.Namespace == namespace {
			t.stale[expectedLabel(key)] = struct{}{}
		}
	}
	t.IsSaved = false
}

// RemovePolicy removes a policy.
func (t *Table) RemovePolicy(namespace, name string) {
	delete(t.policies[namespace], name)
	t.changePolicies(namespace)
}

// PutMulti replaces the policies of a MultiNetworkPolicy.
func (t *Table) PutMulti(namespace, name string, all []*Policy) {
	of := t.policies[namespace]
	maps.DeleteFunc(of, func(key string, _ *Policy) bool { return strings.HasPrefix(key, multiName(name, "")) })
	for _, p := range all {
		t.PutPolicy(p)
	}
	t.changePolicies(namespace)
}

// PutClusterPolicy adds or changes a cluster policy.
func (t *Table) PutClusterPolicy(p *ClusterPolicy) {
	t.cluster[p.Name], t.inOrder, t.ruleset, t.IsSaved = p, nil, nil, false
}

// RemoveClusterPolicy removes a cluster policy.
func (t *Table) RemoveClusterPolicy(name string) {
	delete(t.cluster, name)
	t.inOrder, t.ruleset, t.IsSaved = nil, nil, false
}

// PutNode adds or changes a node.
func (t *Table) PutNode(n *Node) {
	t.RemoveNode(n.Name)
	t.nodes[n.Name] = n
	t.countNode(n, (*podfilter.Set).Add)
}

// RemoveNode removes a node.
func (t *Table) RemoveNode(name string) {
	if old := t.nodes[name]; old != nil {
		t.countNode(old, (*podfilter.Set).Remove)
		delete(t.nodes, name)
	}
}

func (t *Table) countNode(n *Node, do func(*podfilter.Set, string)) {
	for _, g := range t.groups {
		g.countNode(n, do)
	}
}

// SetLocal replaces the attachments of this node.
func (t *Table) SetLocal(all []Local) {
	now := make(map[string]*Local, len(all))
	for i := range all {
		now[all[i].Label] = &all[i]
	}
	changed, moved := map[string]bool{}, map[string]bool{} // labels, and pods by namespace/name whose addresses differ
	for label, old := range t.local {
		l := now[label]
		switch {
		case l == nil || !old.isOf(l):
			moved[old.key()] = true
		case old.equal(*l):
			continue
		}
		changed[label] = true
	}
	for label, l := range now {
		if old, was := t.local[label]; !was || !old.isOf(l) {
			changed[label], moved[l.key()] = true, true
		}
	}
	isChanged := func(l Local) bool { return changed[l.Label] }
	t.makeStale(isChanged)
	var pods []*Pod
	for key := range moved {
		namespace, name, _ := strings.Cut(key, "/")
		if p := t.pods[namespace][name]; p != nil {
			pods = append(pods, p)
		}
	}
	t.change(pods, func() {
		for label := range changed {
			delete(t.local, label)
			if l := now[label]; l != nil {
				t.local[label] = *l
			}
		}
		for key := range moved {
			t.setAddresses(key)
		}
	})
	t.makeStale(isChanged)
}

// setAddresses sets the addresses of a pod of this node to those of its attachments.
func (t *Table) setAddresses(key string) {
	var of []Local
	for _, l := range t.local {
		if l.key() == key {
			of = append(of, l)
		}
	}
	sorting.Func(of, func(a, b Local) int { return strings.Compare(a.Label, b.Label) })
	if (t.addresses[key] == nil) != (of == nil) {
		t.stale[expectedLabel(key)] = struct{}{}
	}
	delete(t.addresses, key)
	for _, l := range of {
		t.addresses[key] = append(t.addresses[key], localPod{l.UID, l.Network, l.Addresses})
	}
}

func (l Local) key() string { return l.Namespace + "/" + l.Name }

func (l Local) equal(o Local) bool {
	return l.isOf(&o) && l.Port == o.Port && l.Bridge == o.Bridge && l.Pending == o.Pending && l.isElsewhere == o.isElsewhere
}

// isOf reports whether two attachments are the same one of a pod, with the same addresses.
func (l Local) isOf(o *Local) bool {
	return l.Label == o.Label && l.Namespace == o.Namespace && l.Name == o.Name && l.UID == o.UID && l.Network == o.Network && slices.Equal(l.Addresses, o.Addresses)
}

// change makes a change that affects the groups of some pods.
func (t *Table) change(pods []*Pod, change func()) {
	for _, p := range pods {
		t.count(p, (*podfilter.Set).Remove)
	}
	change()
	for _, p := range pods {
		t.count(p, (*podfilter.Set).Add)
	}
}

// addressesOf returns a pod's addresses on a network, and whether they are of this node. This node knows its pods' addresses before
// the source does.
func (t *Table) addressesOf(p *Pod, network string) (all []netip.Addr, local bool) {
	if !p.hasAddresses() {
		return nil, false
	}
	for _, l := range t.addresses[p.Key()] {
		if l.network == network && p.Is(l.uid) {
			all, local = append(all, l.addresses...), true
		}
	}
	switch {
	case local:
		return all, true
	case network != "":
		return p.Networks[network], false
	}
	if g, ok := t.given[p.Node][p.Key()]; ok && g.UID == p.UID {
		return g.Addresses, false
	}
	return p.Addresses, false
}

// count adds a pod to the sets of the groups that it belongs to, or removes it.
func (t *Table) count(p *Pod, do func(*podfilter.Set, string)) {
	primary, isLocal := t.addressesOf(p, "")
	labels := t.labelsOf(p.Namespace)
	for _, g := range t.groups {
		addresses, local := primary, isLocal
		if g.key.network != "" {
			addresses, local = t.addressesOf(p, g.key.network)
		}
		g.count(p, labels, addresses, local, do)
	}
}

func (g *group) count(p *Pod, namespace map[string]string, addresses []netip.Addr, local bool, do func(*podfilter.Set, string)) {
	if len(addresses) == 0 || g.key.nodes || g.key.local && !local {
		return
	}
	if g.key.port == "" {
		if s := g.key.selects; s[0].Matches(namespace) && s[1].Matches(p.Labels) {
			g.each(addresses, 0, do)
		}
		return
	}
	for _, port := range p.Ports {
		if port.Name == g.key.port && port.Protocol == g.key.protocol {
			g.each(addresses, port.Port, do)
		}
	}
}

func (g *group) countNode(n *Node, do func(*podfilter.Set, string)) {
	if g.key.nodes && g.key.selects[1].Matches(n.Labels) {
		g.each(n.Addresses, 0, do)
	}
}

func (g *group) each(addresses []netip.Addr, port uint16, do func(*podfilter.Set, string)) {
	for _, a := range addresses {
		if !a.IsValid() { // another program wrote it, and the kernel would refuse the whole change
			continue
		}
		a = a.Unmap().WithZone("")
		set := g.sets[0]
		if a.Is6() {
			set = g.sets[1]
		}
		do(set, podfilter.Key(a, port))
	}
}

// newGroup returns a group with its present members.
func (t *Table) newGroup(k groupKey) *group {
	g, kind := &group{key: k}, podfilter.Addresses
	if k.port != "" {
		kind = podfilter.Endpoints
	}
	for i, v6 := range []bool{false, true} {
		g.sets[i] = podfilter.NewSet(k.setName()+podfilter.Suffix(v6), kind, v6)
	}
	for _, n := range t.nodes {
		g.countNode(n, (*podfilter.Set).Add)
	}
	for namespace, pods := range t.pods {
		labels := t.labelsOf(namespace)
		if k.port == "" && !k.selects[0].Matches(labels) {
			continue
		}
		for _, p := range pods {
			addresses, local := t.addressesOf(p, k.network)
			g.count(p, labels, addresses, local, (*podfilter.Set).Add)
		}
	}
	return g
}
