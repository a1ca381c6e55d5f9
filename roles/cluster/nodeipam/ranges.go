package nodeipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// A ClusterCIDR is an object of kubernetes-sigs/node-ipam-controller: a cluster network of one or both
// families for the nodes that it selects. The finalizer keeps a deleted object until no node has a block
// of it.
const (
	rangesPath     = "/apis/networking.x-k8s.io/v1/clustercidrs"
	rangeFinalizer = "networking.x-k8s.io/cluster-cidr-finalizer"
	// minHostBits is the smallest perNodeHostBits.
	minHostBits = 4
	// maxRangeFaults bounds the text about an object, which can have thousands of requirements, and the ranges in a text.
	maxRangeFaults = 10
)

// clusterCIDR is the object.
type clusterCIDR struct {
	rest.Object
	Spec struct {
		NodeSelector *struct {
			Terms []selectorTerm `json:"nodeSelectorTerms"`
		} `json:"nodeSelector"`
		PerNodeHostBits int    `json:"perNodeHostBits"`
		IPv4            string `json:"ipv4"`
		IPv6            string `json:"ipv6"`
	} `json:"spec"`
}

// selectorTerm matches a node if all its requirements do.
type selectorTerm struct {
	Expressions []rest.Requirement `json:"matchExpressions"`
	Fields      []rest.Requirement `json:"matchFields"`
}

// nodeRange is where blocks come from: the flags' cluster networks, or a ClusterCIDR.
type nodeRange struct {
	// name is the object's, or empty.
	name, version string
	// terms select nodes: one of them must match. Without terms all nodes are selected.
	terms    []selectorTerm
	selector string
	sets     []*blocks // one of each family, IPv4 first
	// deleting is true if the object is deleted, and kept if it has the finalizer.
	deleting, kept bool
	// finalizers are those of other programs.
	finalizers []string
	// fault is the reason why the range cannot be used.
	fault error
}

// newRange reads an object. Its faults are reported at once.
func newRange(o *clusterCIDR) *nodeRange {
	r := &nodeRange{name: o.Metadata.Name, version: o.Metadata.ResourceVersion, deleting: o.Metadata.DeletionTimestamp != ""}
	for _, f := range o.Metadata.Finalizers {
		if f == rangeFinalizer {
			r.kept = true
		} else {
			r.finalizers = append(r.finalizers, f)
		}
	}
	var errs []error
	if s := o.Spec.NodeSelector; s != nil {
		r.terms = s.Terms
		r.selector, errs = selectorText(s.Terms)
	}
	if o.Spec.PerNodeHostBits < minHostBits {
		errs = append(errs, fmt.Errorf("spec.perNodeHostBits: %d is less than %d", o.Spec.PerNodeHostBits, minHostBits))
	}
	for _, f := range []struct{ path, text string }{{"spec.ipv4", o.Spec.IPv4}, {"spec.ipv6", o.Spec.IPv6}} {
		if f.text == "" {
			continue
		}
		p, err := netip.ParsePrefix(f.text)
		if err != nil || p.Addr().Is4In6() || p.Addr().Is4() != (f.path == "spec.ipv4") {
			errs = append(errs, fmt.Errorf("%s: %.60q is not a network of this family", f.path, f.text))
			continue
		}
		b, err := newBlocks(p.Masked(), p.Addr().BitLen()-o.Spec.PerNodeHostBits)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s and spec.perNodeHostBits: %w", f.path, err))
			continue
		}
		b.Range = r.name
		r.sets = append(r.sets, b)
	}
	if o.Spec.IPv4 == "" && o.Spec.IPv6 == "" {
		errs = append(errs, errors.New("spec: ipv4 and ipv6 are missing"))
	}
	if more := len(errs) - maxRangeFaults; more > 0 {
		errs = append(errs[:maxRangeFaults], fmt.Errorf("and %d further faults", more))
	}
	r.fault = errors.Join(errs...)
	if r.fault != nil {
		r.sets = nil
	}
	return r
}

// selectorText returns a selector as the API writes label selectors, with the requirements in the
// order of their texts, and the faults of its requirements.
func selectorText(terms []selectorTerm) (text string, faults []error) {
	if len(terms) == 0 {
		faults = append(faults, errors.New("spec.nodeSelector.nodeSelectorTerms: is empty: give a term, or leave out nodeSelector"))
	}
	var all []string
	for i, t := range terms {
		var some []string
		for _, q := range slices.Concat(t.Expressions, t.Fields) {
			text, ok := requirementText(&q)
			if !ok {
				faults = append(faults, fmt.Errorf("spec.nodeSelector.nodeSelectorTerms[%d]: %.60q %.20q with %d values is not a requirement", i, q.Key, q.Operator, len(q.Values)))
			}
			some = append(some, text)
		}
		for _, q := range t.Fields {
			if q.Key != nameField || q.Operator != "In" && q.Operator != "NotIn" {
				faults = append(faults, fmt.Errorf("spec.nodeSelector.nodeSelectorTerms[%d].matchFields: use %s with In or NotIn", i, nameField))
			}
		}
		slices.Sort(some)
		all = append(all, strings.Join(some, ","))
	}
	return strings.Join(all, "||"), faults
}

// nameField is the only field that a selector can have.
const nameField = "metadata.name"

// requirementText returns a requirement as the API writes it, and false if it is invalid.
func requirementText(q *rest.Requirement) (string, bool) {
	values := "(" + strings.Join(slices.Sorted(slices.Values(q.Values)), ",") + ")"
	_, err := strconv.ParseInt(strings.Join(q.Values, " "), 10, 64)
	switch q.Operator {
	case "In":
		return q.Key + " in " + values, len(q.Values) > 0
	case "NotIn":
		return q.Key + " notin " + values, len(q.Values) > 0
	case "Exists":
		return q.Key, len(q.Values) == 0
	case "DoesNotExist":
		return "!" + q.Key, len(q.Values) == 0
	case "Gt":
		return q.Key + ">" + strings.Join(q.Values, ""), err == nil
	case "Lt":
		return q.Key + "<" + strings.Join(q.Values, ""), err == nil
	}
	return q.Key, false
}

// selects reports whether a range is for a node, and how many requirements of its best term match. As
// for pods, a term without requirements matches no node.
func (r *nodeRange) selects(name string, labels map[string]string) (count int, ok bool) {
	if r.terms == nil {
		return 0, true
	}
	for _, t := range r.terms {
		n, all := 0, true
		for _, q := range t.Expressions {
			value, has := labels[q.Key]
			all = all && q.Matches(value, has)
			n++
		}
		for _, q := range t.Fields {
			all = all && q.Matches(name, true)
			n++
		}
		if all && n > 0 {
			count, ok = max(count, n), true
		}
	}
	return count, ok
}

// capacity is the number of nodes that a range has blocks for.
func (r *nodeRange) capacity() int {
	n := r.sets[0].Max
	for _, b := range r.sets {
		n = min(n, b.Max)
	}
	return n
}

// ordered returns the usable ranges for a node, the best first: that with more matching
// requirements, then with fewer blocks, then with smaller blocks, then by selector and network as text.
func (t *table) ordered(name string, labels map[string]string) []*nodeRange {
	type candidate struct {
		*nodeRange
		matching, capacity int
		network            string
	}
	var all []*candidate
	for _, r := range t.ranges {
		if n, ok := r.selects(name, labels); ok && len(r.sets) > 0 && !r.deleting && (r.kept || r.name == "") {
			all = append(all, &candidate{r, n, r.capacity(), r.sets[0].network.String()})
		}
	}
	sorting.Stable(all, func(a, b *candidate) int {
		return cmp.Or(
			b.matching-a.matching, a.capacity-b.capacity, b.sets[0].length-a.sets[0].length,
			strings.Compare(a.selector, b.selector), strings.Compare(a.network, b.network))
	})
	out := make([]*nodeRange, len(all))
	for i, c := range all {
		out[i] = c.nodeRange
	}
	return out
}

// putRange stores a ClusterCIDR. Its spec cannot be changed, so the blocks of a known one stay.
func (t *table) putRange(o *clusterCIDR) *nodeRange {
	r := newRange(o)
	at := slices.IndexFunc(t.ranges, func(have *nodeRange) bool { return have.name == r.name })
	if at >= 0 && rest.Older(r.version, t.ranges[at].version) {
		return t.ranges[at]
	}
	if at >= 0 && slices.EqualFunc(r.sets, t.ranges[at].sets, func(a, b *blocks) bool { return a.network == b.network && a.length == b.length }) {
		r.sets = t.ranges[at].sets
	} else {
		t.occupyAll(r.sets)
	}
	if at >= 0 {
		t.ranges[at] = r
	} else {
		t.ranges = append(t.ranges, r)
	}
	t.rangesChanged()
	return r
}

// occupyAll marks the blocks of new sets that services or nodes have.
func (t *table) occupyAll(sets []*blocks) {
	for _, b := range sets {
		for _, p := range t.services {
			b.occupy(p)
		}
		for _, n := range t.nodes {
			for _, p := range n.held {
				b.occupy(p)
			}
		}
	}
}

// removeRange removes a ClusterCIDR.
func (t *table) removeRange(name string) {
	t.ranges = slices.DeleteFunc(t.ranges, func(r *nodeRange) bool { return r.name == name && name != "" })
	t.rangesChanged()
}

// rangesChanged updates the blocks of all ranges.
func (t *table) rangesChanged() {
	t.sets = nil
	for _, r := range t.ranges {
		t.sets = append(t.sets, r.sets...)
	}
}

// rangeNamed returns a ClusterCIDR, or nil.
func (t *table) rangeNamed(name string) *nodeRange {
	i := slices.IndexFunc(t.ranges, func(r *nodeRange) bool { return r.name == name && name != "" })
	if i < 0 {
		return nil
	}
	return t.ranges[i]
}

// draining returns the names of the ClusterCIDRs that are deleted.
func (t *table) draining() (names []string) {
	for _, r := range t.ranges {
		if r.deleting {
			names = append(names, r.name)
		}
	}
	return names
}

// isUsed reports whether a node has, or may get, a block of a range that no other range has.
func (t *table) isUsed(r *nodeRange) bool {
	has := func(of *nodeRange, p netip.Prefix) bool {
		return slices.ContainsFunc(of.sets, func(b *blocks) bool { return b.network.Overlaps(p) })
	}
	for _, n := range t.nodes {
		for _, p := range n.held {
			other := func(o *nodeRange) bool { return o != r && !o.deleting && has(o, p) }
			if has(r, p) && !slices.ContainsFunc(t.ranges, other) {
				return true
			}
		}
	}
	return false
}
