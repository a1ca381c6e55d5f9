// Package kube is the registry of nodes in Kubernetes: Node objects, the pod networks that its
// controllers assign to them, and annotations. These are flannel's, so that nodes of both programs
// can share a cluster.
//
// It needs get, list and watch on nodes, and patch on nodes/status. Cluster-wide ranges need get, list,
// create and patch on configmaps of one namespace, and list on ippools.whereabouts.cni.cncf.io.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Options are the arguments of Open.
type Options struct {
	Client *rest.Client
	// Node is the name of this node's object.
	Node string
	// Config is the network's configuration, which Kubernetes does not have.
	Config *cluster.Config
	// Owner decides whether the annotations of this node's object are this machine's. It may be nil. Boot is the ID of
	// this machine's boot.
	Owner *cluster.Owner
	Boot  string
	// Prefix begins the names of the annotations. Empty means DefaultPrefix.
	Prefix string
	// Namespace has the pages of cluster-wide ranges. Empty means DefaultNamespace.
	Namespace string
}

// Registry is Kubernetes, opened for one node. See cluster.Registry.
type Registry struct {
	client *rest.Client
	name   string
	path   string
	config *cluster.Config
	keys   keys
	owner  *cluster.Owner
	boot   string
	// namespace is Options.Namespace.
	namespace string
	// watched is the table of a running Watch, or nil before it is complete.
	watched atomic.Pointer[cluster.Table]
}

var _ cluster.Registry = (*Registry)(nil)

// Open returns a Registry. It does not connect.
func Open(o Options) (*Registry, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	k, err := newKeys(o.Prefix)
	if err != nil {
		return nil, err
	}
	if err := rest.CheckName("node name", o.Node); err != nil {
		return nil, err
	}
	if err := rest.CheckName("range namespace", o.Namespace); err != nil {
		return nil, err
	}
	if o.Client == nil || o.Config == nil {
		return nil, fmt.Errorf("%w: a client and the network's configuration are needed", cluster.ErrInvalid)
	}
	return &Registry{client: o.Client, name: o.Node, path: rest.Path("api", "v1", "nodes", o.Node), config: o.Config, keys: k, owner: o.Owner, boot: o.Boot, namespace: o.Namespace}, nil
}

// Close closes the connections.
func (r *Registry) Close() error {
	r.client.Close()
	return nil
}

// CloseFrom closes the connections from lost addresses.
func (r *Registry) CloseFrom(lost func(netip.Addr) bool) { r.client.CloseFrom(lost) }

// get reads this node's object. If it does not exist, the error is ErrNotAssigned, because it may be
// created later.
func (r *Registry) get(ctx context.Context, o any) error {
	err := r.client.Get(ctx, r.path, o)
	switch {
	case errors.Is(err, rest.ErrNotFound):
		return fmt.Errorf("node %s: %w: there is no such Node object (%w)", r.name, cluster.ErrNotAssigned, err)
	case err != nil:
		return fmt.Errorf("get node %s: %w", r.name, err)
	}
	return nil
}

// renewals bounds the attempts after the object was replaced between reading and writing it.
const renewals = 3

// Acquire writes the annotations of this node that differ from want with the overrides.
// It returns the node with the pod networks that were assigned to it.
func (r *Registry) Acquire(ctx context.Context, want cluster.Node) (cluster.Node, error) {
	var node cluster.Node
	err := (&web.Backoff{Max: time.Second}).Retry(ctx, renewals, rest.ErrConflict, func(int) (err error) {
		node, err = r.acquire(ctx, want)
		return err
	})
	if err == nil {
		r.owner.Published(ctx, &node)
	}
	return node, err
}

func (r *Registry) acquire(ctx context.Context, want cluster.Node) (cluster.Node, error) {
	o, booted, err := r.read(ctx)
	if err != nil {
		return cluster.Node{}, err
	}
	fail := func(err error) (cluster.Node, error) {
		return cluster.Node{}, fmt.Errorf("node %s: %w", r.name, err)
	}
	overrides, err := r.keys.overrides(&o)
	if err != nil {
		return fail(err)
	}
	want.PodCIDRs, err = r.assigned(&o)
	if err != nil {
		return fail(err)
	}
	want.Name = r.name
	if o := overrides; o.NodeIP.IsValid() && want.PublicIP.IsValid() && want.PublicIP != o.NodeIP || o.NodeIPv6.IsValid() && want.PublicIPv6.IsValid() && want.PublicIPv6 != o.NodeIPv6 {
		return fail(fmt.Errorf("%w: an operator has set another public address, which Watch reports", cluster.ErrNotAssigned))
	}
	if overrides.PublishIP.IsValid() && want.PublicIP.IsValid() {
		want.PublicIP = overrides.PublishIP
	}
	if overrides.PublishIPv6.IsValid() && want.PublicIPv6.IsValid() {
		want.PublicIPv6 = overrides.PublishIPv6
	}
	if err := want.CheckIn(r.config); err != nil {
		return fail(err)
	}
	found, _ := r.node(&o) // its faults are repaired
	if err := r.owner.Check(&found, &want, booted); err != nil {
		return fail(err)
	}
	want.Author = found.Author
	changes := missing(&o, r.keys.annotations(&want))
	if err := r.claim(&want, len(changes) == 0); err != nil {
		return fail(err)
	}
	if len(changes) > 0 || !r.owner.Current(found.Author) {
		want.Author = r.owner.Next(ctx, found.Author)
		changes = missing(&o, r.keys.annotations(&want))
	}
	if len(changes) > 0 {
		if err := r.annotate(ctx, &o, o.Metadata.ResourceVersion, changes); err != nil {
			return fail(err)
		}
	}
	return r.node(&o)
}

// read reads this node's object. booted is true if kubelet runs in this machine's present boot.
func (r *Registry) read(ctx context.Context) (o rest.Node, booted bool, err error) {
	var all struct {
		rest.Node
		Status struct {
			NodeInfo struct {
				BootID string `json:"bootID"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	err = r.get(ctx, &all)
	return all.Node, r.boot != "" && all.Status.NodeInfo.BootID == r.boot, err
}

// assigned returns this node's pod networks, one of each enabled family.
func (r *Registry) assigned(o *rest.Node) ([]netip.Prefix, error) {
	cidrs, err := r.podCIDRs(o)
	if err != nil {
		return nil, err
	}
	if families := r.config.Families(); len(cidrs) < len(families) {
		return nil, fmt.Errorf("%w: spec.podCIDRs is %v and must have one in each of %v: does the controller manager run with --allocate-node-cidrs, or cnibox nodeipam?", cluster.ErrNotAssigned, cidrs, families)
	}
	return cidrs, nil
}

// claim returns an error if another node has the pod networks. If this node's record is published,
// the node whose name sorts first keeps them.
func (r *Registry) claim(n *cluster.Node, published bool) error {
	watched := r.watched.Load()
	if watched == nil {
		return nil // no Watch runs; a later one reports the conflict, and the agent calls Acquire again
	}
	w := cluster.SubnetRequest{Name: n.Name, Demanded: n.PodCIDRs}
	if published {
		w.Own = n.PodCIDRs
	}
	watched.Each(func(other *cluster.Node) { w.Others = append(w.Others, other) })
	_, err := r.config.Assign(w)
	return err
}

// annotate writes annotations of the object o, not of a later one with the same name. With a version, no one else may
// have written the object since then. It stores the result in o.
func (r *Registry) annotate(ctx context.Context, o *rest.Node, version string, changes map[string]*string) error {
	patch := rest.Annotations(o.Metadata.UID, version, changes)
	*o = rest.Node{}
	if err := r.client.Patch(ctx, r.path+"/status", rest.MergePatch, patch, o); err != nil {
		return fmt.Errorf("patch annotations: %w", err)
	}
	return nil
}

// condition is a corev1.NodeCondition.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	LastHeartbeatTime  string `json:"lastHeartbeatTime"`
	LastTransitionTime string `json:"lastTransitionTime"`
}

// conditions is the patch of a Node's conditions. A strategic merge replaces the condition of the same
// type.
type conditions struct {
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

// The condition and its reason are flannel's.
const networkUnavailable, clearReason = "NetworkUnavailable", "FlannelIsUp"

// isClear reports whether Ready has written the condition.
func (c *conditions) isClear() bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c condition) bool {
		return c.Type == networkUnavailable && c.Status == "False" && c.Reason == clearReason
	})
}

// removeCondition removes the condition that Ready wrote: the node has no network of cnibox any more.
func (r *Registry) removeCondition(ctx context.Context) error {
	var o struct {
		rest.Object
		conditions
	}
	if err := r.get(ctx, &o); err != nil || !o.isClear() {
		return err
	}
	patch := map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"$patch": "delete", "type": networkUnavailable}}}}
	if err := r.client.Patch(ctx, r.path+"/status", rest.StrategicMergePatch, patch, nil); err != nil {
		return fmt.Errorf("remove %s of node %s: %w", networkUnavailable, r.name, err)
	}
	return nil
}

// Ready clears the condition NetworkUnavailable, which cloud controllers set and the
// scheduler respects, with flannel's reason. It writes nothing if the condition is
// clear.
func (r *Registry) Ready(ctx context.Context) error {
	var o struct {
		rest.Object
		conditions
	}
	if err := r.get(ctx, &o); err != nil {
		return err
	}
	if o.isClear() {
		return nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	var patch conditions
	patch.Status.Conditions = []condition{{
		Type: networkUnavailable, Status: "False", Reason: clearReason, Message: "The overlay network of cnibox is up on this node",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	if err := r.client.Patch(ctx, r.path+"/status", rest.StrategicMergePatch, patch, nil); err != nil {
		return fmt.Errorf("clear %s of node %s: %w", networkUnavailable, r.name, err)
	}
	return nil
}

// Release removes the annotations that Acquire wrote, and the condition of Ready. Annotations of operators and of another machine stay.
func (r *Registry) Release(ctx context.Context) error {
	var o rest.Node
	switch err := r.get(ctx, &o); {
	case errors.Is(err, cluster.ErrNotAssigned):
		return nil
	case err != nil:
		return err
	}
	if err := r.owner.Check(&cluster.Node{Author: r.author(&o)}, &cluster.Node{}, false); err != nil {
		return fmt.Errorf("node %s: %w", r.name, err)
	}
	if err := r.removeCondition(ctx); err != nil {
		return err
	}
	none := map[string]*string{}
	for _, key := range r.keys.own() {
		none[key] = nil
	}
	changes := missing(&o, none)
	if len(changes) == 0 {
		return nil
	}
	err := r.annotate(ctx, &o, "", changes)
	if errors.Is(err, rest.ErrConflict) || errors.Is(err, rest.ErrNotFound) {
		return nil // a new object, which does not have the annotations
	}
	return err
}
