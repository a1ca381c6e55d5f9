package netpolicy

import (
	"net/netip"
	"slices"
	"strings"
)

// Given are the addresses that a node has given to a pod.
type Given struct {
	UID       string       `json:"uid"`
	Addresses []netip.Addr `json:"addresses"`
}

// Given returns, by namespace/name, the pods of this node whose addresses the source does not tell yet: kubelet writes them into
// a pod's status seconds after its ADD, and other nodes drop the pod's packets until they know them. Without policies it is empty.
func (t *Table) Given() map[string]Given {
	all := map[string]Given{}
	if len(t.cluster) == 0 && !t.hasPolicies() {
		return all
	}
	for key, of := range t.addresses {
		namespace, name, _ := strings.Cut(key, "/")
		p := t.pods[namespace][name]
		for _, l := range of {
			if p == nil || l.network != "" || l.uid == "" || !p.Is(l.uid) || !p.hasAddresses() {
				continue
			}
			if slices.ContainsFunc(l.addresses, func(a netip.Addr) bool { return !slices.Contains(p.Addresses, a) }) {
				all[key] = Given{UID: p.UID, Addresses: l.addresses}
			}
		}
	}
	return all
}

func (t *Table) hasPolicies() bool {
	for _, of := range t.policies {
		if len(of) > 0 {
			return true
		}
	}
	return false
}

// PutGiven replaces what another node returned as Given. It precedes the addresses of the source, which may be those of an earlier
// container of the pod, and has no effect on pods of other nodes.
func (t *Table) PutGiven(node string, given map[string]Given) {
	var changed []*Pod
	for _, of := range []map[string]Given{t.given[node], given} {
		for key := range of {
			namespace, name, _ := strings.Cut(key, "/")
			if p := t.pods[namespace][name]; p != nil && !slices.Contains(changed, p) {
				changed = append(changed, p)
			}
		}
	}
	t.change(changed, func() {
		delete(t.given, node)
		if len(given) > 0 {
			t.given[node] = given
		}
	})
}
