package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// rangeKey begins the names of ClusterCIDRs in the queue. No Node has it in its name.
const rangeKey = "clustercidr/"

// rangeFollower is the controller as the cluster.Follower of the ClusterCIDRs.
type rangeFollower struct{ *controller }

// Put stores a ClusterCIDR.
func (f rangeFollower) Put(o *clusterCIDR, _ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed(f.table.putRange(o))
}

// changed adds a range that needs its finalizer added or removed, and the nodes that it may have blocks for.
func (c *controller) changed(r *nodeRange) {
	if r.fault != nil {
		c.log.Warn("a ClusterCIDR is not used", "name", r.name, "error", r.fault)
	}
	if c.assigning {
		c.queueRanges(r.name)
		c.queue.add(c.table.starved()...)
	}
}

// queueRanges adds ClusterCIDRs that are objects.
func (c *controller) queueRanges(names ...string) {
	for _, name := range names {
		if name != "" && c.fromRanges {
			c.queue.add(rangeKey + name)
		}
	}
}

// Remove removes a deleted ClusterCIDR.
func (f rangeFollower) Remove(name string, _ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.removeRange(name)
}

// Complete removes the ClusterCIDRs that do not exist any more.
func (f rangeFollower) Complete(names map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range slices.Clone(f.table.ranges) {
		if r.name != "" && !names[r.name] {
			f.table.removeRange(r.name)
		}
	}
	delete(f.errs, rangesPath)
	f.synced(rangesPath)
}

// Failed stores why the ClusterCIDRs cannot be followed.
func (f rangeFollower) Failed(err error) { f.failed(rangesPath, err) }

// Recovered is called when the ClusterCIDRs can be followed again.
func (f rangeFollower) Recovered() { f.recovered(rangesPath) }

// followFile reads the file of ClusterCIDRs at intervals until ctx ends.
func (f rangeFollower) followFile(ctx context.Context) {
	for wait := (web.Backoff{Min: f.interval, Max: f.interval}); wait.Wait(ctx, 0) == nil; {
		changed, err := f.networks.reload()
		if err != nil {
			f.Failed(err)
			continue
		}
		f.Recovered()
		if !changed {
			continue
		}
		names := map[string]bool{}
		for i := range f.networks.ranges {
			o := &f.networks.ranges[i]
			names[o.Metadata.Name] = true
			f.Put(o, false)
		}
		f.Complete(names)
		f.log.Info("the file of ClusterCIDRs has changed", "path", f.networks.file)
	}
}

// labels reads a Node's labels. They are not kept, because a large cluster has many.
func (c *controller) labels(ctx context.Context, name string) (map[string]string, error) {
	var o struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	err := rest.CheckName("node", name)
	if err == nil {
		err = c.client.Get(ctx, rest.Path("api", "v1", "nodes", name), &o)
	}
	return o.Metadata.Labels, err
}

// finalizerPatch is the merge patch that adds or removes the finalizer.
type finalizerPatch struct {
	Metadata struct {
		ResourceVersion string   `json:"resourceVersion"`
		Finalizers      []string `json:"finalizers"`
	} `json:"metadata"`
}

// keepRange adds the finalizer to a ClusterCIDR before it is used, and removes it from a deleted one
// when no node has a block of it. It returns true if that must be tried again.
func (c *controller) keepRange(ctx context.Context, name string) (retry bool) {
	c.mu.Lock()
	r := c.table.rangeNamed(name)
	var p finalizerPatch
	change := r != nil && r.kept == r.deleting && (!r.deleting || !c.table.isUsed(r))
	if change {
		p.Metadata.ResourceVersion, p.Metadata.Finalizers = r.version, slices.Clone(r.finalizers)
		if !r.deleting {
			p.Metadata.Finalizers = append(p.Metadata.Finalizers, rangeFinalizer)
		}
	}
	c.mu.Unlock()
	if !change || rest.CheckName("clustercidr", name) != nil {
		return false
	}
	if ctx.Err() != nil || !c.term.Valid() {
		return true
	}
	var o clusterCIDR
	err := c.client.Patch(ctx, rest.Path("apis", "networking.x-k8s.io", "v1", "clustercidrs", name), rest.MergePatch, &p, &o)
	if errors.Is(err, rest.ErrNotFound) {
		return false
	}
	if err != nil {
		c.log.Warn("cannot change the finalizers of a ClusterCIDR", "name", name, "error", fmt.Errorf("patch: %w", err))
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.table.rangeNamed(name) != nil && o.Metadata.DeletionTimestamp == "" {
		c.changed(c.table.putRange(&o))
	}
	return false
}
