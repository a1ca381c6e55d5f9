package kube

import (
	"context"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

const nodes = "/api/v1/nodes"

// Watch follows all Node objects.
func (r *Registry) Watch(ctx context.Context, fn func(cluster.Update)) error {
	defer r.seen.Store(nil)
	return cluster.WatchWith(ctx, fn, func(ctx context.Context, relay *cluster.Relay) error {
		f := follower{registry: r, relay: relay, changed: make(chan struct{}, 1)}
		var wg sync.WaitGroup
		wg.Go(func() { f.report(ctx) })
		defer wg.Wait()
		return rest.Follow(ctx, r.client, nodes, &f)
	})
}

// follower has the Node objects at a version. It is a rest.Follower.
type follower struct {
	registry *Registry
	relay    *cluster.Relay
	changed  chan struct{}

	mu    sync.Mutex
	table cluster.Table
	own   rest.Node // this node's, or zero
}

// report sends snapshots to the relay. Making a snapshot takes as long as reading many changes, so only few
// are made in a burst of changes.
func (f *follower) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
		f.mu.Lock()
		s := f.table.Snapshot()
		f.mu.Unlock()
		f.registry.seen.Store(s)
		f.relay.Put(s)
	}
}

func (f *follower) notify() {
	select {
	case f.changed <- struct{}{}:
	default: // a report is pending
	}
}

// Failed reports an error of the server.
func (f *follower) Failed(err error) { f.relay.Fail(err) }

// Recovered reports that the server can be reached again.
func (f *follower) Recovered() { f.notify() }

// Complete removes all nodes that are not among names.
func (f *follower) Complete(names map[string]bool) {
	f.mu.Lock()
	f.table.Keep(names)
	if !names[f.registry.name] {
		f.own = rest.Node{}
	}
	f.mu.Unlock()
	f.notify()
}

// Put stores an object, and reports a change unless all objects are being read.
func (f *follower) Put(o *rest.Node, listing bool) {
	r := f.registry
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := false
	if r.keys.takesPart(o) {
		n, err := r.node(o)
		changed = f.table.Put(o.Metadata.Name, n, err)
	} else {
		changed = f.table.Remove(o.Metadata.Name)
	}
	if o.Metadata.Name == r.name {
		changed = changed || !r.same(o, &f.own)
		f.own = *o
	}
	if changed && !listing {
		f.notify()
	}
}

// same reports whether the fields that Acquire reads are equal in two objects. The agent may be waiting
// for a difference.
func (r *Registry) same(o, p *rest.Node) bool {
	for _, key := range append(r.keys.own(), r.keys.nodeIP, r.keys.nodeIPv6, r.keys.publishIP, r.keys.publishIPv6) {
		if o.Metadata.Annotations[key] != p.Metadata.Annotations[key] {
			return false
		}
	}
	return o.Metadata.UID == p.Metadata.UID && o.Spec.PodCIDR == p.Spec.PodCIDR && slices.Equal(o.Spec.PodCIDRs, p.Spec.PodCIDRs)
}

// Remove removes an object, and reports a change unless all objects are being read.
func (f *follower) Remove(name string, listing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.table.Remove(name)
	if name == f.registry.name {
		changed, f.own = true, rest.Node{}
	}
	if changed && !listing {
		f.notify()
	}
}
