package cluster

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// Table holds a registry's entries while they change, and gives snapshots of
// them. It is not safe for concurrent use.
type Table struct {
	Config *Config
	nodes  map[string]Node
	faults map[string]error
}

// Put has an entry be a node, or a fault when err is not nil. It tells whether
// that changed anything.
func (t *Table) Put(name string, n Node, err error) bool {
	if t.nodes == nil {
		t.nodes, t.faults = map[string]Node{}, map[string]error{}
	}
	old, was := t.nodes[name]
	fault, faulty := t.faults[name]
	delete(t.nodes, name)
	delete(t.faults, name)
	if err != nil {
		t.faults[name] = err
		return !faulty || fault.Error() != err.Error()
	}
	t.nodes[name] = n
	return !was || !old.Same(&n)
}

// Remove forgets an entry, and tells whether there was one.
func (t *Table) Remove(name string) bool {
	_, was := t.nodes[name]
	_, faulty := t.faults[name]
	delete(t.nodes, name)
	delete(t.faults, name)
	return was || faulty
}

// Keep forgets every entry that is not among names, as after a list, and tells
// whether there was one.
func (t *Table) Keep(names map[string]bool) bool {
	before := len(t.nodes) + len(t.faults)
	maps.DeleteFunc(t.nodes, func(name string, _ Node) bool { return !names[name] })
	maps.DeleteFunc(t.faults, func(name string, _ error) bool { return !names[name] })
	return len(t.nodes)+len(t.faults) != before
}

// Snapshot is what the table says now.
func (t *Table) Snapshot() *Snapshot {
	s := &Snapshot{Config: t.Config, Nodes: make([]Node, 0, len(t.nodes)), Faults: maps.Clone(t.faults)}
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		s.Nodes = append(s.Nodes, t.nodes[name])
	}
	return s
}

// sameJSON compares what two texts say. The first comparison is by far the most
// frequent: records are written by programs, in one way each.
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

// decode keeps numbers as they are written.
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
