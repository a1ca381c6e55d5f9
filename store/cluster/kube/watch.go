package kube

import (
	"context"
	"slices"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

const nodes = "/api/v1/nodes"

// Watch follows all Node objects.
func (r *Registry) Watch(ctx context.Context, to *cluster.Relay) error {
	defer r.watched.Store(nil)
	return rest.Follow(ctx, r.client, nodes, &follower{View: cluster.View{Relay: to}, registry: r})
}

// follower has the Node objects at a version. It is a cluster.Follower.
type follower struct {
	cluster.View
	registry *Registry
	own      rest.Node // this node's, or zero
}

// Complete removes all nodes that are not among names.
func (f *follower) Complete(names map[string]bool) {
	f.Table.Keep(names)
	if !names[f.registry.name] {
		f.own = rest.Node{}
	}
	f.registry.watched.Store(&f.Table)
	f.Recovered()
}

// Put stores an object, and reports a change unless all objects are being read.
func (f *follower) Put(o *rest.Node, listing bool) {
	r := f.registry
	changed := false
	if r.keys.takesPart(o) {
		n, err := r.node(o)
		changed = f.Table.Put(o.Metadata.Name, n, err)
	} else {
		changed = f.Table.Remove(o.Metadata.Name)
	}
	if o.Metadata.Name == r.name {
		changed = changed || !r.same(o, &f.own)
		f.own = *o
		if overrides, err := r.keys.overrides(o); err == nil { // Acquire returns the error
			f.Table.SetOverrides(overrides)
		}
	}
	f.Changed(changed, listing)
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
	changed := f.Table.Remove(name)
	if name == f.registry.name {
		changed, f.own = true, rest.Node{}
	}
	f.Changed(changed, listing)
}
