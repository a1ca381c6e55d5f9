package egress

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/egress"
)

// View is what the agent knows of the cluster.
type View struct {
	// Networks are the pod networks. Near are other networks that pods reach with the addresses that they have without an egress address.
	Networks, Near []netip.Prefix
	// Nodes are the addresses of all nodes.
	Nodes []netip.Addr
	// Peers are the other nodes that this node sends to, by name.
	Peers map[string]Peer
	// Tunnels are the devices that lead to other nodes. Arrivals are those on which packets of other nodes' pods arrive.
	Tunnels, Arrivals []string
	// Fault is why pods of this node cannot be sent to another node.
	Fault error
}

// Same reports whether two views are equal.
func (v *View) Same(o *View) bool {
	errText := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return errText(v.Fault) == errText(o.Fault) && slices.Equal(v.Networks, o.Networks) && slices.Equal(v.Near, o.Near) && slices.Equal(v.Nodes, o.Nodes) &&
		maps.Equal(v.Peers, o.Peers) && slices.Equal(v.Tunnels, o.Tunnels) && slices.Equal(v.Arrivals, o.Arrivals)
}

// Peer is another node, with its hop and its pod network of IPv4 and IPv6.
type Peer struct {
	Hops    [2]Hop
	Subnets [2]netip.Prefix
}

// Hop is how packets reach a node. Link is an index.
type Hop struct {
	Via  netip.Addr
	Link int
}

// localPod is an attachment of this node.
type localPod struct {
	Namespace, Name string
	Device, MAC     string
	Addresses       []netip.Addr
}

// facts are all that a decision follows from.
type facts struct {
	node string
	View
	// requests are those of namespaces.
	requests map[string]Request
	// holders are the nodes that have announced that they hold an address.
	holders map[netip.Addr]string
	// published has the namespaces of nodes' pods, by node and the pod's address.
	published map[string]map[netip.Addr]string
	pods      []localPod
	// held are the addresses that this node holds.
	held map[netip.Addr]bool
	// indexes are those of addresses in the last decision. They stay, because packets have them as marks.
	indexes map[netip.Addr]int
}

// decision is what this node does.
type decision struct {
	spec egress.Spec
	// publish has the namespaces of this node's pods.
	publish map[netip.Addr]string
	// wanted are the addresses that valid annotations name, with their namespaces.
	wanted map[netip.Addr][]string
	// faults are sentences for a person.
	faults  []string
	indexes map[netip.Addr]int
	// assigned has the egress address of each address of this node's pods. It is the zero Addr for a pod whose packets are dropped.
	assigned map[netip.Addr]netip.Addr
	// held are the addresses that this node holds, and holders the nodes that have announced that they hold one. inside reports whether an address is
	// not outside of the cluster.
	held    map[netip.Addr]bool
	holders map[netip.Addr]string
	inside  func(netip.Addr) bool
	// unmatched are the pods, NAMESPACE/NAME, whose packets cannot be recognised.
	unmatched map[string]bool
}

// decide computes a decision.
func decide(f *facts) *decision {
	d := &decision{
		publish: map[netip.Addr]string{}, wanted: map[netip.Addr][]string{}, indexes: map[netip.Addr]int{},
		assigned: map[netip.Addr]netip.Addr{}, held: f.held, holders: f.holders, inside: f.inside, unmatched: map[string]bool{},
		spec: egress.Spec{Networks: f.Networks, Near: slices.Concat(f.Near, always()), Nodes: f.Nodes, Tunnels: f.Tunnels, Arrivals: f.Arrivals, Remote: map[netip.Addr]int{}},
	}
	valid := map[string]Request{}
	for _, namespace := range slices.Sorted(maps.Keys(f.requests)) {
		r := f.requests[namespace]
		r.err = cmp.Or(r.err, f.refusal(r))
		valid[namespace] = r
		if r.err != nil {
			d.faults = append(d.faults, fmt.Sprintf("namespace %s: %s: its pods' packets to the outside are dropped", namespace, r.err))
			continue
		}
		for _, a := range r.addresses {
			if a.IsValid() {
				d.wanted[a] = append(d.wanted[a], namespace)
			}
		}
	}
	d.addPods(f, valid)
	d.addRemote(f, valid)
	d.addAddresses(f)
	return d
}

// always are the networks that no packet to the outside has as its destination.
func always() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// refusal returns why the addresses of an annotation cannot be egress addresses.
func (f *facts) refusal(r Request) error {
	for _, a := range r.addresses {
		switch {
		case !a.IsValid():
		case slices.Contains(f.Nodes, a):
			return fmt.Errorf("annotation %s: %s is the address of a node", Annotation, a)
		case slices.ContainsFunc(f.Networks, func(p netip.Prefix) bool { return p.Contains(a) }):
			return fmt.Errorf("annotation %s: %s is in a pod network", Annotation, a)
		}
	}
	return nil
}

// indexOf returns the index of an address, or 0 if there is room for no more.
func (d *decision) indexOf(f *facts, a netip.Addr) int {
	if i, has := d.indexes[a]; has {
		return i
	}
	taken := func(i int) bool {
		for _, all := range []map[netip.Addr]int{d.indexes, f.indexes} {
			for other, index := range all {
				if index == i && other != a {
					return true
				}
			}
		}
		return false
	}
	i := f.indexes[a]
	for i == 0 || i <= egress.MaxAddresses && taken(i) {
		i++
	}
	if i > egress.MaxAddresses {
		d.faults = append(d.faults, fmt.Sprintf("%s is one of more than %d egress addresses of this node's pods: their packets are dropped", a, egress.MaxAddresses))
		return 0
	}
	d.indexes[a] = i
	return i
}

// addPods adds this node's pods of namespaces with an annotation.
func (d *decision) addPods(f *facts, valid map[string]Request) {
	for _, p := range f.pods {
		r, has := valid[p.Namespace]
		if !has {
			continue
		}
		if p.MAC == "" || p.Device == "" {
			d.unmatched[p.Namespace+"/"+p.Name] = true
			d.faults = append(d.faults, fmt.Sprintf("pod %s/%s has no MAC address, or no interface on the host: its packets leave without the egress address", p.Namespace, p.Name))
			continue
		}
		for _, own := range p.Addresses {
			a := r.addresses[familyIndex(own)]
			if r.err == nil && !a.IsValid() {
				continue
			}
			pod := egress.Pod{Device: p.Device, MAC: p.MAC, Addr: own}
			if r.err == nil && f.Fault == nil {
				pod.Index = d.indexOf(f, a)
				d.publish[own] = p.Namespace
			}
			d.assigned[own] = netip.Addr{}
			if pod.Index != 0 {
				d.assigned[own] = a
			}
			d.spec.Pods = append(d.spec.Pods, pod)
		}
	}
}

// addRemote adds other nodes' pods whose egress address this node holds. A node speaks for the addresses of its own pod network only.
func (d *decision) addRemote(f *facts, valid map[string]Request) {
	for node, pods := range f.published {
		peer, known := f.Peers[node]
		if node == f.node || !known {
			continue
		}
		for own, namespace := range pods {
			i := familyIndex(own)
			r, has := valid[namespace]
			if a := r.addresses[i]; has && r.err == nil && f.held[a] && peer.Subnets[i].IsValid() && peer.Subnets[i].Contains(own) {
				if index := d.indexOf(f, a); index != 0 {
					d.spec.Remote[own] = index
				}
			}
		}
	}
}

// addAddresses adds the addresses that have an index.
func (d *decision) addAddresses(f *facts) {
	for a, i := range d.indexes {
		one := egress.Address{Addr: a, Index: i, Held: f.held[a]}
		if peer, known := f.Peers[f.holders[a]]; !one.Held && known {
			hop := peer.Hops[familyIndex(a)]
			one.Via, one.Link = hop.Via, hop.Link
		}
		d.spec.Addresses = append(d.spec.Addresses, one)
	}
	sorting.Func(d.spec.Addresses, func(a, b egress.Address) int { return cmp.Compare(a.Index, b.Index) })
	d.faults = slices.Compact(sorting.Sorted(d.faults, strings.Compare))
}

// sources returns the addresses with which this node sends the packets of pods to the outside, by the pods' addresses: the egress address if the
// node holds it, else the pod's own, with which they go to the holder. It is the zero Addr for packets that are dropped.
func (d *decision) sources() map[netip.Addr]netip.Addr {
	all := map[netip.Addr]netip.Addr{}
	for own, a := range d.assigned {
		switch {
		case !a.IsValid():
			all[own] = netip.Addr{}
		case d.held[a]:
			all[own] = a
		default:
			all[own] = own
		}
	}
	for _, a := range d.spec.Addresses {
		for own, index := range d.spec.Remote {
			if index == a.Index {
				all[own] = a.Addr
			}
		}
	}
	return all
}

// inside reports whether an address is not outside of the cluster.
func (f *facts) inside(a netip.Addr) bool {
	return slices.Contains(f.Nodes, a) ||
		slices.ContainsFunc(slices.Concat(f.Networks, f.Near, always()), func(p netip.Prefix) bool { return p.Contains(a) })
}
