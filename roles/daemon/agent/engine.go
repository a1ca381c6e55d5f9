package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
)

// engine is a registry with what the agent has to know of its kind.
type engine struct {
	cluster.Registry
	// name is what people call it: its kind and where it is.
	name string
	// config is the network's configuration where the registry holds none, and it
	// is a file of the node's.
	config *cluster.Config
	// anonymous: nodes have no names there but what Acquire returns.
	anonymous bool
	// assigns: it chooses pod networks by itself; none can be asked for.
	assigns bool
}

// clusterDir is where the registry is if no flag says so, below the state directory.
const clusterDir = "cluster"

// open opens the registry that the flags name.
func (s *settings) open(_ context.Context, h *roles.Host, node string, previous []netip.Prefix) (*engine, error) {
	warn := func(text string) { h.Log.Warn(text) }
	r := &s.registry
	switch {
	case r.kube:
		return nil, errors.New("-kube-subnet-mgr: not yet")
	case len(r.etcd) > 0:
		return nil, errors.New("-etcd-endpoints: not yet")
	}
	path := r.dir
	if path == "" {
		path = filepath.Join(filepath.Dir(h.Store.KeepPath()), clusterDir)
	}
	reg, err := dir.Open(dir.Options{Dir: path, Name: node, Previous: previous, Warn: warn})
	if err != nil {
		return nil, err
	}
	return &engine{Registry: reg, name: "dir " + path}, nil
}

// memory is what outlives the agent and the boot, in keep.db. Without it the
// node works, but its peers have to learn new addresses.
type memory struct{ host *roles.Host }

// remembered is what there is to remember.
type remembered struct {
	// PodCIDRs are the pod networks that the node had, MACs its VTEPs' addresses
	// by their devices' names.
	PodCIDRs []netip.Prefix    `json:"podCIDRs,omitempty"`
	MACs     map[string]string `json:"macs,omitempty"`
}

// Where it is in keep.db.
const (
	markKind = "agent"
	markName = "node"
)

// load reads what is remembered.
func (m memory) load(ctx context.Context) (r remembered) {
	err := m.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, markName)
		if err != nil || !ok {
			return err
		}
		return json.Unmarshal(raw, &r)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		m.host.Log.Warn("what was remembered of this node cannot be read", "error", err)
	}
	return r
}

// save remembers what change makes of it.
func (m memory) save(ctx context.Context, change func(*remembered)) {
	r := m.load(ctx)
	change(&r)
	raw, err := json.Marshal(r)
	if err == nil {
		err = m.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.Mark(markKind, markName, raw) })
	}
	if err != nil {
		m.host.Log.Warn("nothing is remembered of this node", "error", err)
	}
}

// forget forgets all.
func (m memory) forget(ctx context.Context) error {
	return m.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.Unmark(markKind, markName) })
}
