package cluster

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Table holds a registry's entries and makes snapshots of them. It is safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex
	config *Config
	// nodes are in order of their names. A node does not change, because snapshots have it too.
	nodes     []*Node
	faults    map[string]error
	overrides Overrides
	// lost has the names of the nodes that stay although the registry does not have them. See Lose.
	lost map[string]bool
}

// Config returns the configuration of the last SetConfig, or nil.
func (t *Table) Config() *Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.config
}

// SetConfig replaces the configuration. It reports whether it has changed.
func (t *Table) SetConfig(c *Config) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.config == nil || c == nil || *t.config != *c
	t.config = c
	return changed
}

// SetOverrides replaces this node's overrides.
func (t *Table) SetOverrides(o Overrides) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overrides = o
}

// Put stores a node under a name, or a fault if err is not nil. It reports whether the table has
// changed.
func (t *Table) Put(name string, n Node, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, was := t.find(name)
	lost := t.lost[name]
	delete(t.lost, name)
	if err != nil {
		if was {
			t.nodes = slices.Delete(t.nodes, i, i+1)
		}
		fault, faulty := t.faults[name]
		if t.faults == nil {
			t.faults = map[string]error{}
		}
		t.faults[name] = err
		return was || !faulty || fault.Error() != err.Error()
	}
	delete(t.faults, name)
	if len(t.lost) > 0 && (lost || !was || !slices.Equal(t.nodes[i].claims(), n.claims())) {
		t.dropClaimed(n.claims())
		i, _ = t.find(name)
	}
	if !was {
		t.nodes = slices.Insert(t.nodes, i, &n)
		return true
	}
	changed := !t.nodes[i].Same(&n)
	t.nodes[i] = &n
	return changed
}

// Has reports whether there is a node under a name.
func (t *Table) Has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, has := t.find(name)
	return has
}

func (t *Table) find(name string) (int, bool) {
	return slices.BinarySearchFunc(t.nodes, name, func(n *Node, name string) int { return strings.Compare(n.Name, name) })
}

// Remove removes an entry. It reports whether there was one.
func (t *Table) Remove(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, was := t.find(name)
	if was {
		t.nodes = slices.Delete(t.nodes, i, i+1)
	}
	_, faulty := t.faults[name]
	delete(t.faults, name)
	delete(t.lost, name)
	return was || faulty
}

// Keep removes every entry that is neither in names nor a lost node, and reports whether there was one.
func (t *Table) Keep(names map[string]bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.nodes) + len(t.faults)
	t.nodes = slices.DeleteFunc(t.nodes, func(n *Node) bool { return !names[n.Name] && !t.lost[n.Name] })
	maps.DeleteFunc(t.faults, func(name string, _ error) bool { return !names[name] })
	return len(t.nodes)+len(t.faults) != before
}

// Lose makes the nodes that are not in names lost: the registry has lost its data, so their absence does not mean that
// they were removed. They stay until they are put again or Forget is called. It returns their number. own is this node's
// name, which must publish itself again. A node that is not in the configured network, or whose address or pod network
// another one has now, does not stay.
func (t *Table) Lose(names map[string]bool, own string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	claimed := map[netip.Prefix]bool{}
	for _, n := range t.nodes {
		for _, p := range n.claims() {
			claimed[p] = claimed[p] || names[n.Name]
		}
	}
	t.lost = map[string]bool{}
	for _, n := range t.nodes {
		if !names[n.Name] && n.Name != own && n.CheckIn(t.config) == nil && !slices.ContainsFunc(n.claims(), func(p netip.Prefix) bool { return claimed[p] }) {
			t.lost[n.Name] = true
		}
	}
	return len(t.lost)
}

// dropClaimed removes the lost nodes with one of these claims.
func (t *Table) dropClaimed(claims []netip.Prefix) {
	t.nodes = slices.DeleteFunc(t.nodes, func(n *Node) bool {
		drop := t.lost[n.Name] && slices.ContainsFunc(n.claims(), func(p netip.Prefix) bool { return slices.Contains(claims, p) })
		if drop {
			delete(t.lost, n.Name)
		}
		return drop
	})
}

// claims returns what only one node can have: its addresses and pod networks.
func (n *Node) claims() []netip.Prefix {
	all := slices.Clone(n.PodCIDRs)
	for _, a := range []netip.Addr{n.PublicIP, n.PublicIPv6} {
		if a.IsValid() {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// Forget removes the lost nodes, and reports whether there was one.
func (t *Table) Forget() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.nodes)
	t.nodes = slices.DeleteFunc(t.nodes, func(n *Node) bool { return t.lost[n.Name] })
	t.lost = nil
	return len(t.nodes) != before
}

// Each calls fn with each node. fn must not change the node or use the table. Each returns false if
// the table has faults, because an entry with a fault may be of any node.
func (t *Table) Each(fn func(*Node)) (whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.nodes {
		fn(n)
	}
	return len(t.faults) == 0
}

// Len returns the number of entries of the registry, including faults.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes) + len(t.faults) - len(t.lost)
}

// Snapshot returns the current entries.
func (t *Table) Snapshot() *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Snapshot{Config: t.config, Nodes: slices.Clone(t.nodes), Faults: maps.Clone(t.faults), Overrides: t.overrides}
}

// sameJSON compares the values of two JSON texts. Most records are written by one
// program, so comparing the bytes first usually decides.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if isNull(a) || isNull(b) {
		return isNull(a) && isNull(b)
	}
	x, err := decode(a)
	if err != nil {
		return false
	}
	y, err := decode(b)
	return err == nil && reflect.DeepEqual(x, y)
}

// decode decodes JSON with numbers as texts, so that large ones stay exact.
func decode(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func isNull(raw json.RawMessage) bool {
	d := bytes.TrimSpace(raw)
	return len(d) == 0 || string(d) == "null"
}
