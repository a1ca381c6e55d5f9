package cluster

import (
	"bytes"
	"encoding/json"
	"maps"
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
	nodes  []*Node
	faults map[string]error
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

// Put stores a node under a name, or a fault if err is not nil. It reports whether the table has
// changed.
func (t *Table) Put(name string, n Node, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, was := t.find(name)
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
	if !was {
		t.nodes = slices.Insert(t.nodes, i, &n)
		return true
	}
	changed := !t.nodes[i].Same(&n)
	t.nodes[i] = &n
	return changed
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
	return was || faulty
}

// Keep removes every entry that is not in names, and reports whether there was one.
func (t *Table) Keep(names map[string]bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.nodes) + len(t.faults)
	t.nodes = slices.DeleteFunc(t.nodes, func(n *Node) bool { return !names[n.Name] })
	maps.DeleteFunc(t.faults, func(name string, _ error) bool { return !names[name] })
	return len(t.nodes)+len(t.faults) != before
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

// Len returns the number of entries, including faults.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes) + len(t.faults)
}

// Snapshot returns the current entries.
func (t *Table) Snapshot() *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Snapshot{Config: t.config, Nodes: slices.Clone(t.nodes), Faults: maps.Clone(t.faults)}
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
