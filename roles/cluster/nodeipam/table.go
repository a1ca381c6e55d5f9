package nodeipam

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// table has the nodes of the cluster and the blocks that they hold. It does no I/O. A block is free
// only if no node has it in its spec.podCIDRs and none may get it from a request that was sent.
type table struct {
	ranges []*nodeRange
	// sets are the blocks of all ranges.
	sets     []*blocks
	services []netip.Prefix
	nodes    map[string]*node
	// alone is true while this process makes every assignment, unless another program assigns pod
	// networks, too.
	alone bool
}

// node is a Node object.
type node struct {
	uid, version string
	deleting     bool
	fenced       bool
	// assigned is true if the object has pod networks, which never change.
	assigned bool
	// held are the blocks of the object, or those that this process has chosen for it.
	held []netip.Prefix
	// fault is the reason why the node needs an operator.
	fault error
	// logged is true if the log has the faults of the object's pod networks.
	logged bool
	// event is the reason of the last event about the node.
	event string
	// condition is the object's, empty if it has none.
	condition condition
}

// newTable returns a table without nodes. sets are the blocks of -cluster-cidr, if it is given.
func newTable(sets []*blocks, services []netip.Prefix) *table {
	t := &table{services: services, nodes: map[string]*node{}}
	if len(sets) > 0 {
		t.ranges = []*nodeRange{{sets: sets}}
	}
	t.occupyAll(sets)
	t.rangesChanged()
	return t
}

// why returns the reasons why a node needs an operator. The ranges can change, so the second one is not kept.
func (t *table) why(n *node) error {
	if !n.assigned {
		return n.fault
	}
	return errors.Join(n.fault, t.misplaced(n.held))
}

// put stores a Node as it was read. It returns true if the node waits for pod networks and is new,
// and whether other nodes may get blocks that were released.
func (t *table) put(o *nodeObject) (waits, released bool) {
	n := t.nodes[o.Metadata.Name]
	if n != nil && n.uid != o.Metadata.UID {
		t.remove(o.Metadata.Name)
		n, released = nil, true
	}
	isNew := n == nil
	if isNew {
		n = &node{uid: o.Metadata.UID}
		t.nodes[o.Metadata.Name] = n
	}
	return t.update(n, o, isNew) && isNew, released
}

// refresh stores a Node as a reply had it, unless it was deleted since or a newer one is stored.
func (t *table) refresh(o *nodeObject) {
	if n := t.nodes[o.Metadata.Name]; n != nil && n.uid == o.Metadata.UID {
		t.update(n, o, false)
	}
}

// update stores the fields of o, and returns true if the node waits for pod networks.
func (t *table) update(n *node, o *nodeObject, isNew bool) bool {
	if rest.Older(o.Metadata.ResourceVersion, n.version) {
		return false
	}
	n.version, n.deleting = o.Metadata.ResourceVersion, o.Metadata.DeletionTimestamp != ""
	_, n.fenced = o.Metadata.Annotations[fenceAnnotation]
	n.condition = o.condition()
	if !n.assigned && (len(o.Spec.PodCIDRs) > 0 || o.Spec.PodCIDR != "") {
		held, fault := readCIDRs(o)
		if t.alone && !isNew && !slices.Equal(held, n.held) {
			fault = errors.Join(fault, fmt.Errorf("another program assigned %v: run one program that assigns pod networks, and start kube-controller-manager with --allocate-node-cidrs=false", held))
		}
		t.hold(n, held)
		n.assigned, n.fault = true, fault
	}
	return !n.assigned && !n.deleting
}

// hold replaces the blocks that a node holds.
func (t *table) hold(n *node, held []netip.Prefix) {
	if slices.Equal(held, n.held) {
		return // an assignment was executed as it was sent
	}
	for _, b := range t.sets {
		for _, p := range held {
			b.occupy(p)
		}
		for _, p := range n.held {
			b.release(p)
		}
	}
	n.held = held
}

// readCIDRs returns the pod networks of a Node, at most one of each family, and an error for those that cannot be used.
// In a registry without an API server an object can have any number, of which no agent uses more.
func readCIDRs(o *nodeObject) (held []netip.Prefix, fault error) {
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 {
		texts = []string{o.Spec.PodCIDR}
	}
	var faults []error
	if n := len(texts); n > 2 {
		faults = append(faults, fmt.Errorf("spec.podCIDRs: %d networks, of which the first two count: delete the Node, and it gets others", n))
		texts = texts[:2]
	}
	for i, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			faults = append(faults, fmt.Errorf("spec.podCIDRs[%d]: %.60q is not a network: delete the Node, and it gets another", i, text))
		case len(held) > 0 && held[0].Addr().Is4() == p.Addr().Is4():
			faults = append(faults, fmt.Errorf("spec.podCIDRs[%d]: %s is a second network of its family, and not used: delete the Node, and it gets others", i, p))
		default:
			held = append(held, p.Masked())
		}
	}
	return held, errors.Join(faults...)
}

// misplaced returns an error if pod networks are not one of each cluster network of one range.
func (t *table) misplaced(held []netip.Prefix) error {
	var faults []error
	var in []*blocks
	for _, p := range held {
		at := slices.IndexFunc(t.sets, func(b *blocks) bool { return b.network.Contains(p.Addr()) && p.Bits() >= b.network.Bits() })
		if at < 0 {
			faults = append(faults, fmt.Errorf("spec.podCIDRs: %s is outside of the cluster networks %s: use a cluster network that contains it, or delete the Node, and it gets another", p, t.networks()))
			continue
		}
		in = append(in, t.sets[at])
	}
	if len(faults) > 0 || len(held) == 0 {
		return errors.Join(faults...)
	}
	for _, r := range t.ranges {
		lacks := func(b *blocks) bool {
			return !slices.ContainsFunc(held, func(p netip.Prefix) bool { return b.network.Contains(p.Addr()) && p.Bits() >= b.network.Bits() })
		}
		at := slices.IndexFunc(r.sets, lacks)
		if at < 0 && len(r.sets) > 0 {
			return nil
		}
		if at >= 0 && slices.ContainsFunc(r.sets, func(b *blocks) bool { return slices.Contains(in, b) }) {
			faults = append(faults, fmt.Errorf("spec.podCIDRs: %v has none in %s, and cannot be changed: delete the Node, and it gets all", held, r.sets[at].network))
		}
	}
	return errors.Join(faults...)
}

// networks returns the cluster networks as --cluster-cidr has them, the first ones of many.
func (t *table) networks() string {
	var all []string
	for _, b := range t.sets[:min(len(t.sets), maxRangeFaults)] {
		all = append(all, b.network.String())
	}
	if more := len(t.sets) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("… (%d more)", more))
	}
	return cmp.Or(strings.Join(all, ","), "(none)")
}

// remove removes a deleted Node.
func (t *table) remove(name string) {
	if n := t.nodes[name]; n != nil {
		t.hold(n, nil)
		delete(t.nodes, name)
	}
}

// assignment is what a Node gets.
type assignment struct {
	uid, version string
	fenced       bool
	cidrs        []netip.Prefix
}

// assign chooses a block of each family for a node, or none, from the best range with free blocks. It returns the same blocks until the node
// has pod networks or is deleted, because a request may have been sent with them. It returns nil if the
// node does not wait, and cluster.ErrFull if no range has a free block of each family.
func (t *table) assign(name string, labels map[string]string) (*assignment, error) {
	n := t.nodes[name]
	if n == nil || n.assigned || n.deleting {
		return nil, nil
	}
	n.fault = rest.CheckName("node", name)
	if n.fault != nil {
		return nil, nil
	}
	if n.held == nil {
		n.held, n.fault = t.take(t.ordered(name, labels))
		if n.fault != nil {
			return nil, n.fault
		}
	}
	return &assignment{uid: n.uid, version: n.version, fenced: n.fenced, cidrs: n.held}, nil
}

// take takes a block of each family from the first range that has them. Ranges can overlap, so the
// blocks are taken in all of them.
func (t *table) take(from []*nodeRange) (taken []netip.Prefix, err error) {
	err = fmt.Errorf("%w: no ClusterCIDR selects this node: label the node, or make one without nodeSelector", cluster.ErrFull)
	for i, r := range from {
		full := slices.IndexFunc(r.sets, func(b *blocks) bool { return b.Used == b.Max })
		if full < 0 {
			for _, b := range r.sets {
				p, _ := b.take()
				taken = append(taken, p)
				for _, other := range t.sets {
					if other != b {
						other.occupy(p)
					}
				}
			}
			return taken, nil
		}
		if b := r.sets[full]; i == 0 {
			err = fmt.Errorf("%w: every /%d of %s is taken: delete unused Nodes, or use a larger cluster network", cluster.ErrFull, b.length, b.network)
		}
	}
	return nil, err
}

// fail stores why an assignment is not made yet.
func (t *table) fail(name string, err error) {
	if n := t.nodes[name]; n != nil && !n.assigned {
		n.fault = err
	}
}

// announce returns true if the last event about the node had another reason.
func (t *table) announce(name, reason string) (uid string, ok bool) {
	n := t.nodes[name]
	if n == nil || n.event == reason {
		return "", false
	}
	n.event = reason
	return n.uid, true
}

// waiting returns the nodes without pod networks, also those that are being deleted.
func (t *table) waiting() (names []string) {
	for name, n := range t.nodes {
		if !n.assigned {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// starved returns the nodes for which no block was free.
func (t *table) starved() []string {
	return slices.DeleteFunc(t.waiting(), func(name string) bool { return t.nodes[name].held != nil })
}

// keep removes all nodes that are not among names.
func (t *table) keep(names map[string]bool) {
	for name := range maps.Clone(t.nodes) {
		if !names[name] {
			t.remove(name)
		}
	}
}
