package netpolicy

import (
	"maps"
	"net/netip"
	"slices"
)

// State has the objects of a Table. The agent sends it to the verbs that explain policies.
type State struct {
	KeepEstablished    bool                         `json:"keepEstablished,omitempty"`
	ImplicitNamespaces bool                         `json:"implicitNamespaces,omitempty"`
	Namespaces         map[string]map[string]string `json:"namespaces"`
	Nodes              []*Node                      `json:"nodes"`
	Pods               []*Pod                       `json:"pods"`
	Policies           []*Policy                    `json:"policies"`
	Cluster            []*ClusterPolicy             `json:"cluster"`
	Local              []Local                      `json:"local"`
	Given              map[string]map[string]Given  `json:"given,omitempty"`
	// Faults are of the objects that are not in force as they are written.
	Faults []*Fault `json:"faults,omitempty"`
}

// State returns the objects, which the caller must not change. Changes of the Table do not change them.
func (t *Table) State() *State {
	s := &State{
		KeepEstablished: t.KeepEstablished, ImplicitNamespaces: t.ImplicitNamespaces, Namespaces: maps.Clone(t.namespaces),
		Nodes: slices.Collect(maps.Values(t.nodes)), Pods: t.Pods(), Cluster: slices.Collect(maps.Values(t.cluster)), Local: slices.Collect(maps.Values(t.local)),
		Given: maps.Clone(t.given), Faults: t.Faults(),
	}
	for _, of := range t.policies {
		s.Policies = slices.AppendSeq(s.Policies, maps.Values(of))
	}
	return s
}

// Table returns a new Table of the objects.
func (s *State) Table() *Table {
	t := NewTable()
	t.KeepEstablished, t.ImplicitNamespaces = s.KeepEstablished, s.ImplicitNamespaces
	t.OnNode = func(*Pod) bool { return false } // the attachments are known
	for name, labels := range s.Namespaces {
		t.PutNamespace(name, labels)
	}
	for _, n := range s.Nodes {
		t.PutNode(n)
	}
	for _, p := range s.Pods {
		t.PutPod(p)
	}
	for _, p := range s.Policies {
		t.PutPolicy(p)
	}
	for _, p := range s.Cluster {
		t.PutClusterPolicy(p)
	}
	t.SetLocal(s.Local)
	for node, given := range s.Given {
		t.PutGiven(node, given)
	}
	return t
}

// Only returns a Table in which the pods with some addresses are those of the node, also if they are of other nodes.
func (s *State) Only(ends ...netip.Addr) *Table {
	has := func(all []netip.Addr) bool {
		return slices.ContainsFunc(all, func(a netip.Addr) bool { return slices.Contains(ends, a) })
	}
	own := *s
	own.Local = slices.DeleteFunc(slices.Clone(s.Local), func(l Local) bool { return !has(l.Addresses) })
	for _, p := range s.Pods {
		add := func(network string, addresses []netip.Addr) {
			here := slices.ContainsFunc(own.Local, func(l Local) bool { return l.Namespace == p.Namespace && l.Name == p.Name && l.Network == network })
			if !here && p.hasAddresses() && has(addresses) {
				own.Local = append(own.Local, Local{Label: p.Key() + "@" + network, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Network: network, Addresses: addresses, isElsewhere: true})
			}
		}
		add("", p.Addresses)
		for network, addresses := range p.Networks {
			add(network, addresses)
		}
	}
	return own.Table()
}
