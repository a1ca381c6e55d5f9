package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// clusterMark is the key in keep.db of the state of the cluster.
const clusterMark = "cluster"

// saveDelay is the time between a change of the cluster and the save of its state, per node of the
// cluster. The state of 10,000 nodes has 2 MB and is saved every 10 seconds at most.
const saveDelay = time.Millisecond

// clusterMemory is the last state of the cluster that the agent knew. A restarted agent maintains it
// while the registry does not answer.
type clusterMemory struct {
	// Registry, Node, Local4 and Local6 identify the node. The memory may have been copied from
	// another machine.
	Registry string     `json:"registry"`
	Node     string     `json:"node"`
	Local4   netip.Addr `json:"local4,omitzero"`
	Local6   netip.Addr `json:"local6,omitzero"`

	Config    *cluster.Config   `json:"config"`
	Own       *cluster.Node     `json:"own"`
	Overrides cluster.Overrides `json:"overrides,omitzero"`
	Nodes     []*cluster.Node   `json:"nodes"`
}

// recaller saves the state of the cluster, which a later agent recalls. The loop does not save, because keep.db may be locked and
// the disk may be slow.
type recaller struct {
	host  *roles.Host
	saves chan clusterMemory
	// unsaved and saved are the loop's. unsaved is true if the state may have changed since it was sent to saves. saved is the state
	// that a former agent saved, until it is used.
	unsaved bool
	saved   *clusterMemory
}

// remember has the state of the cluster saved if it changed.
func (a *agent) remember() {
	if !a.recaller.unsaved || a.own == nil || a.config == nil || a.fromMemory {
		return
	}
	a.recaller.unsaved = false
	sendLatest(a.recaller.saves, clusterMemory{
		Registry: a.registry.name, Node: a.registry.node, Local4: a.underlay.local4, Local6: a.underlay.local6,
		Config: a.config, Own: a.own, Overrides: a.overrides, Nodes: a.snapshot.Nodes,
	})
}

// run saves each state that differs from the saved one, until ctx ends.
func (r *recaller) run(ctx context.Context) {
	var saved [sha256.Size]byte
	var failure string
	for {
		var m clusterMemory
		select {
		case <-ctx.Done():
			return
		case m = <-r.saves:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(len(m.Nodes)) * saveDelay):
		}
		select {
		case m = <-r.saves: // the state has changed meanwhile
		default:
		}
		m.Nodes = withoutAuthors(m.Nodes)
		raw, err := json.Marshal(m)
		sum := sha256.Sum256(raw)
		if err == nil && sum == saved {
			continue
		}
		if err == nil {
			err = r.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.Mark(markKind, clusterMark, raw) })
		}
		if len(m.Nodes) >= manyNodes {
			debug.FreeOSMemory()
		}
		if err == nil {
			saved, failure = sum, ""
		} else if text := err.Error(); ctx.Err() == nil && text != failure {
			failure = text
			r.host.Log.Warn("cannot save the state of the cluster", "error", err)
		}
	}
}

// withoutAuthors returns copies of nodes without their authors, which nothing reads from the memory.
func withoutAuthors(nodes []*cluster.Node) []*cluster.Node {
	all, plain := make([]*cluster.Node, len(nodes)), make([]cluster.Node, len(nodes))
	for i, n := range nodes {
		plain[i] = *n
		plain[i].Author = cluster.Author{}
		all[i] = &plain[i]
	}
	return all
}

// recall takes over the saved state of the cluster if the registry does not answer after the start
// and the node has the same addresses as before.
func (a *agent) recall(ctx context.Context) {
	if a.snapshot != nil || a.registryErr == nil && time.Since(a.started) < startTime {
		return
	}
	if a.recaller.saved == nil {
		a.recaller.saved = a.recaller.load(ctx, a.registry)
	}
	m := a.recaller.saved
	if m.Config == nil || m.Own == nil {
		return
	}
	selection := a.set.underlay
	selection.override(m.Overrides)
	u, err := selection.choose(a.links, m.Config.EnableIPv4, m.Config.EnableIPv6, a.routeLink)
	if err != nil || u.local4 != m.Local4 || u.local6 != m.Local6 {
		return
	}
	a.log.Warn("the registry does not answer: the agent maintains the state that it knew last", "nodes", len(m.Nodes))
	a.fromMemory, a.recaller.saved = true, nil
	a.config, a.own, a.overrides, a.snapshot = a.set.withFlags(m.Config), m.Own, m.Overrides, &cluster.Snapshot{Config: m.Config, Nodes: m.Nodes}
}

// load reads the saved state of the cluster. The result is empty if there is none of this node in this registry.
func (r *recaller) load(ctx context.Context, from *registryClient) *clusterMemory {
	var m clusterMemory
	err := r.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, clusterMark)
		if err != nil || !ok {
			return err
		}
		return json.Unmarshal(raw, &m)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.host.Log.Warn("cannot read the saved state of the cluster", "error", err)
	}
	if err != nil || m.Registry != from.name || m.Node != from.node {
		return &clusterMemory{}
	}
	m.Nodes = slices.DeleteFunc(m.Nodes, func(n *cluster.Node) bool { return n == nil }) // JSON's null
	if from.config != nil {
		m.Config = from.config
	}
	return &m
}
