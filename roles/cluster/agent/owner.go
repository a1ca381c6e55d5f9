package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// ownerMark is the key in keep.db of what decides which record is this node's.
const ownerMark = "owner"

// savedOwner is the content of ownerMark. Node is the node's name: under another name the machine is another node.
type savedOwner struct {
	Node string `json:"node"`
	cluster.OwnerState
}

// openOwner returns what decides which record is this node's. With -ranges-only the node has no record.
func (s *settings) openOwner(ctx context.Context, h *roles.Host, node string) *cluster.Owner {
	if s.rangesOnly {
		return nil
	}
	m := memory{h}
	hostName, _ := os.Hostname() // only for people
	return cluster.NewOwner(cluster.OwnerOptions{
		Node: node, Host: hostName, Machine: m.machine(ctx), Boot: h.Store.BootID(), State: m.loadOwner(ctx, node),
		Save: func(ctx context.Context, state cluster.OwnerState) error {
			err := h.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error { return saveOwner(tx, &savedOwner{node, state}) })
			if err != nil && ctx.Err() == nil {
				h.Log.Warn("cannot save which record in the registry is this node's", "error", err)
			}
			return err
		},
	})
}

func saveOwner(tx *store.KeepTx, o *savedOwner) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return tx.Mark(markKind, ownerMark, raw)
}

// loadOwner reads what an Owner saved. Without it, the former pod networks are those of the memory.
func (m memory) loadOwner(ctx context.Context, node string) cluster.OwnerState {
	var o savedOwner
	err := m.host.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		raw, ok, err := tx.Marked(markKind, ownerMark)
		if err != nil || !ok {
			return err
		}
		return json.Unmarshal(raw, &o)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		m.host.Log.Warn("cannot read which record in the registry is this node's", "error", err)
	}
	if err != nil || o.Node != node {
		o = savedOwner{}
	}
	if len(o.Former) == 0 {
		o.Former = m.load(ctx).PodCIDRs
	}
	return o.OwnerState
}

// forgetFormer deletes the node's former pod networks.
func forgetFormer(tx *store.KeepTx) error {
	var o savedOwner
	raw, ok, err := tx.Marked(markKind, ownerMark)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	if !ok || json.Unmarshal(raw, &o) != nil {
		return tx.Unmark(markKind, ownerMark)
	}
	o.Former = nil
	return saveOwner(tx, &o)
}

// machine returns the machine's identity, which it makes if there is none.
func (m memory) machine(ctx context.Context) string {
	machine := m.load(ctx).Machine
	if machine == "" {
		machine = rand.Text()
		m.save(ctx, func(r *remembered) {
			if r.Machine == "" { // else the load failed, or another process has saved it meanwhile
				r.Machine = machine
			}
			machine = r.Machine
		})
	}
	return machine
}
