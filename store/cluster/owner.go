package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// Author is the part of a record that says which machine wrote it, and with which write. flanneld ignores it, and
// its records have none. See Owner.
type Author struct {
	// Node and Host are the writer's name in the registry and its host name.
	Node string `json:"node"`
	Host string `json:"host"`
	// Machine differs between machines, except that a clone of a machine has the same one. Boot is the ID of the
	// writer's boot.
	Machine string `json:"machine"`
	Boot    string `json:"boot"`
	// Count is larger than that of every former write of the record, and 1 after the highest valid one. First
	// is the Count of the first write of the agent that wrote the record.
	Count uint64 `json:"count"`
	First uint64 `json:"first"`
	// ID is different for each write.
	ID string `json:"id"`
}

// maxCount bounds Count, so that a hostile record does not make it overflow. maxAuthor bounds each text.
const (
	maxCount  = 1 << 52
	maxAuthor = 253
)

// check returns an error for a value that no agent writes.
func (c *Author) check() error {
	for _, s := range []string{c.Node, c.Host, c.Machine, c.Boot, c.ID} {
		if len(s) > maxAuthor {
			return fmt.Errorf("%w: author: a text is longer than %d bytes", ErrInvalid, maxAuthor)
		}
	}
	if c.Count > maxCount || c.First > c.Count {
		return fmt.Errorf("%w: author: count is %d, first is %d", ErrInvalid, c.Count, c.First)
	}
	return nil
}

// OwnerState is what an Owner keeps over restarts and reboots.
type OwnerState struct {
	// Last is the author of the last known write. Pending are those of writes whose result is not known, because
	// the agent was killed.
	Last    Author   `json:"last"`
	Pending []Author `json:"pending,omitempty"`
	// Former are the pod networks that the node had, the newest first.
	Former []netip.Prefix `json:"former,omitempty"`
}

// Bounds of an OwnerState.
const (
	maxPending = 4
	maxFormer  = 16
)

// OwnerOptions are the arguments of NewOwner.
type OwnerOptions struct {
	// Node, Host, Machine and Boot are those of Author.
	Node, Host, Machine, Boot string
	// State is what Save saved last.
	State OwnerState
	// Save makes an OwnerState durable. If it fails, records are written without an author.
	Save func(context.Context, OwnerState) error
}

// Owner decides for every registry which record is this node's own. A name and an address do not suffice: two
// machines can have one name, and an address can change hands. A record is this node's if
//
//   - it has no valid author: flanneld or an operator wrote it;
//   - this machine's last write, or one whose result is unknown, made it;
//   - it is older than this machine's last write, because the registry was restored;
//   - it has this node's address or the registry knows that it is this machine's, and this agent has not
//     published yet: the machine was installed again;
//   - this agent published before the record's writer did: a clone of this machine was started.
//
// So of two machines the one whose agent published first keeps the record, and the other gets ErrConflict.
//
// A nil Owner writes no authors, and owns every record. An Owner is safe for concurrent use.
type Owner struct {
	o  OwnerOptions
	mu sync.Mutex
	// state is what was saved. next is the author of the write under way.
	state OwnerState
	next  Author
	// unsaved is true if Save failed last.
	unsaved bool
	// first is the Count of this agent's first write, and 0 before the record was this agent's.
	first uint64
}

// NewOwner returns an Owner that has not published yet.
func NewOwner(o OwnerOptions) *Owner { return &Owner{o: o, state: o.State} }

// Wrote reports whether this machine wrote a record: with its last write, or with one whose result is unknown.
func (w *Owner) Wrote(c Author) bool {
	if w == nil || c.ID == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrote(c)
}

func (w *Owner) wrote(c Author) bool {
	return c == w.state.Last || slices.Contains(w.state.Pending, c)
}

// Related reports whether this machine or a clone of it wrote a record under this node's name.
func (w *Owner) Related(c Author) bool {
	return w != nil && c.Machine != "" && c.Machine == w.o.Machine && c.Node == w.o.Node
}

// Former returns the pod networks that the node had, the newest first.
func (w *Owner) Former() []netip.Prefix {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.state.Former)
}

// Check returns ErrConflict, with both machines, if a record that may be this node's belongs to another machine.
// known is true if the registry knows that this machine has the record's name.
func (w *Owner) Check(found, me *Node, known bool) error {
	if w == nil || found.Author == (Author{}) || found.Author.check() != nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := found.Author
	known = known || found.SameAddress(me)
	older := c.Count < w.state.Last.Count && (known || w.Related(c))
	if w.wrote(c) || older || w.first == 0 && known || w.first != 0 && w.first < c.First {
		return nil
	}
	return fmt.Errorf("record of node %q: %w: machine %q at %s (boot %.8s) has published it, and this is machine %q at %s (boot %.8s): "+
		"give each machine a node name and a state directory of its own, or remove the record if that machine is gone for good",
		c.Node, ErrConflict, c.Host, shown(found), c.Boot, w.o.Host, shown(me), w.o.Boot)
}

// shown returns a node's address for people.
func shown(n *Node) string {
	if a := n.Address(); a.IsValid() {
		return a.String()
	}
	return "an unknown address"
}

// Current reports whether a record need not be written again for its author: this machine wrote it in this boot.
func (w *Owner) Current(c Author) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unsaved && c == (Author{}) || w.wrote(c) && c.Boot == w.o.Boot
}

// Unchanged reports whether want need not be written in place of a record of this node. It sets want's author.
func (w *Owner) Unchanged(found, want *Node) bool {
	want.Author = found.Author
	return found.Same(want) && w.Current(found.Author)
}

// Next returns the author of the next write of a record, which has the author found. It is saved before it is
// returned, so that the record is this machine's if the agent is killed between the two writes.
func (w *Owner) Next(ctx context.Context, found Author) Author {
	if w == nil {
		return found
	}
	if found.check() != nil {
		found = Author{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	count := max(found.Count, w.state.Last.Count) + 1
	if count > maxCount {
		count = 1 // no agent counts so far
	}
	c := Author{Node: w.o.Node, Host: w.o.Host, Machine: w.o.Machine, Boot: w.o.Boot, Count: count, ID: w.next.ID}
	if c.ID == "" { // a write that is tried again keeps its ID: the former attempt may arrive late
		c.ID = rand.Text()
	}
	c.First = w.first
	if w.first == 0 || w.first > c.Count {
		c.First = c.Count
	}
	if slices.Contains(w.state.Pending, c) {
		w.next = c
		return c
	}
	state := w.state
	state.Pending = append(slices.Clone(state.Pending), c)
	if n := len(state.Pending); n > maxPending {
		state.Pending = state.Pending[n-maxPending:]
	}
	w.unsaved = w.o.Save(ctx, state) != nil
	if w.unsaved {
		return Author{}
	}
	w.state, w.next = state, c
	return c
}

// Published notes that the registry has this node's record. An error of Save does not matter: the write is pending.
func (w *Owner) Published(ctx context.Context, n *Node) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first, w.next = n.Author.First, Author{}
	state := OwnerState{Last: n.Author, Former: slices.Clone(w.state.Former)}
	for _, p := range slices.Backward(n.PodCIDRs) {
		state.Former = slices.Insert(slices.DeleteFunc(state.Former, func(q netip.Prefix) bool { return p == q }), 0, p)
	}
	state.Former = state.Former[:min(len(state.Former), maxFormer)]
	if n.Author == (Author{}) {
		state.Last = w.state.Last
	}
	if state.Last == w.state.Last && len(w.state.Pending) == 0 && slices.Equal(state.Former, w.state.Former) {
		return
	}
	_ = w.o.Save(ctx, state)
	w.state = state
}
