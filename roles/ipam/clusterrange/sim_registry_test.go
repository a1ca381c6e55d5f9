package clusterrange

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
)

// simRegistry is a registry that answers late, loses requests and answers, and executes writes long after they failed.
type simRegistry struct {
	w     *simWorld
	pages map[string]*simPage
	// joined are the nodes with a record. changed has the times at which records were made or deleted last.
	joined  map[string]bool
	changed map[string]time.Duration
	// late are writes that may still be executed.
	late []func()
}

type simPage struct {
	raw     []byte
	version int
	blocks  []simBlock
}

// simBlock is a block of a page. claimed is when its claim was written.
type simBlock struct {
	First, Last          netip.Addr
	Node, Machine, Claim string
	claimed              time.Duration
}

// same reports whether another block has the same addresses and owner.
func (b *simBlock) same(o simBlock) bool {
	return b.First == o.First && b.Last == o.Last && b.Node == o.Node && b.Machine == o.Machine
}

func (b *simBlock) has(a netip.Addr) bool { return !a.Less(b.First) && !b.Last.Less(a) }

// owner returns the block of an address, or nil.
func (r *simRegistry) owner(a netip.Addr) *simBlock {
	for _, p := range r.pages {
		for i := range p.blocks {
			if p.blocks[i].has(a) {
				return &p.blocks[i]
			}
		}
	}
	return nil
}

// join makes or deletes the record of a node.
func (r *simRegistry) join(node string, joined bool) {
	if r.joined[node] != joined {
		r.joined[node], r.changed[node] = joined, r.w.now
	}
}

// fate is what happens to a request.
type fate int

const (
	fine fate = iota
	lost
	answerLost
	writtenLate
)

// simClient is the registry of one node.
type simClient struct {
	r *simRegistry
	n *simNode
}

// do performs a request: it waits for its execution, and for its answer. delay executes a write after do has failed.
func (c simClient) do(what string, execute func() error, delay bool) error {
	c.n.at = what
	c.n.task.Park()
	fate := c.n.fate
	if c.n.cut || c.n.away {
		fate = lost
	}
	failed := fmt.Errorf("%w: %s", cluster.ErrUnavailable, what)
	var err error
	switch fate {
	case fine, answerLost:
		err = execute()
	case writtenLate:
		if delay {
			c.r.late = append(c.r.late, func() { _ = execute() })
		}
		err = failed
	case lost:
		err = failed
	}
	if c.n.slow {
		c.n.at = "answer of " + what
		c.n.task.Park()
	}
	if fate == answerLost {
		err = failed
	}
	return err
}

func (c simClient) Pages() cluster.Collection { return simPages{c} }

// simPages is the pages as one node reads and writes them.
type simPages struct{ simClient }

func (c simPages) List(_ context.Context, each func(string, []byte, string)) error {
	names := slices.Sorted(maps.Keys(c.r.pages))
	got := map[string][]byte{}
	read := func(of []string) func() error {
		return func() error {
			for _, name := range of {
				got[name] = c.r.pages[name].raw
			}
			return nil
		}
	}
	// The list is not one state of the registry.
	half := len(names) / 2
	err := c.do("list", read(names[:half]), false)
	if err == nil {
		err = c.do("list, second half", read(names[half:]), false)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		each(name, got[name], "") // no keeper uses it
	}
	return nil
}

func (c simPages) Read(_ context.Context, name string) (raw []byte, version string, err error) {
	err = c.do("read "+name, func() error {
		if p := c.r.pages[name]; p != nil {
			raw, version = p.raw, strconv.Itoa(p.version)
		}
		return nil
	}, false)
	if err != nil {
		return nil, "", err
	}
	return raw, version, nil
}

func (c simPages) Write(_ context.Context, name string, raw []byte, version string) (string, error) {
	raw, machine, began := slices.Clone(raw), c.n.machine, c.n.began
	return "", c.do("write "+name, func() error { return c.r.write(c.n, machine, began, name, raw, version) }, true)
}

func (c simClient) Join(context.Context) error {
	return c.do("join", func() error { c.r.join(c.n.name, true); return nil }, true)
}

func (c simClient) Gone(_ context.Context, node string) (gone bool, err error) {
	err = c.do("gone "+node, func() error { gone = !c.r.joined[node]; return nil }, false)
	return gone && err == nil, err
}

func (simClient) ForeignRanges(context.Context) ([]cluster.ForeignRange, error) { return nil, nil }

// write replaces a page, and checks what has changed. The pass that writes began then.
func (r *simRegistry) write(by *simNode, machine string, began time.Duration, name string, raw []byte, version string) error {
	p := r.pages[name]
	switch {
	case p == nil && version != "", p != nil && version != strconv.Itoa(p.version):
		return cluster.ErrRaced
	case p == nil:
		p = &simPage{}
		r.pages[name] = p
	}
	var next struct{ Blocks []simBlock }
	if err := json.Unmarshal(raw, &next); err != nil {
		r.w.broken("%s writes %s: %v", by.name, name, err)
		return nil
	}
	var last netip.Addr
	for i := range next.Blocks {
		b := &next.Blocks[i]
		if b.Last.Less(b.First) || last.IsValid() && !last.Less(b.First) {
			r.w.broken("%s writes overlapping blocks into %s", by.name, name)
		}
		last, b.claimed = b.Last, r.w.now
		for _, o := range p.blocks {
			if o.First == b.First && o.Claim == b.Claim {
				b.claimed = o.claimed
			}
		}
		if b.Node == by.name && b.Machine == machine && !r.joined[by.name] && r.changed[by.name] < began && !slices.ContainsFunc(p.blocks, b.same) {
			r.w.broken("%s takes the block %s without a record", by.name, b.First)
		}
	}
	before := p.blocks
	p.raw, p.blocks = raw, next.Blocks
	p.version++
	for _, o := range before {
		b := r.owner(o.First)
		if b != nil && o.same(*b) {
			continue
		}
		taken := o.Node != by.name || o.Machine != machine
		if taken {
			r.w.taken(by, machine, &o, b)
		}
		r.w.left(&o, taken)
	}
	return nil
}

var _ cluster.Ranges = simClient{}
