package leasing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Allocator gives addresses by a plan, and keeps who has them in the store.
type Allocator struct {
	Plan *Plan
	Life Liveness
}

// ID is the pool of a network.
func (a *Allocator) ID(network string) store.PoolID {
	return store.PoolID{DataDir: a.Plan.DataDir, Network: network}
}

// Allocate gives an attachment one address of every set, or none at all. When a
// set is exhausted, or a requested address is taken, owners that are certainly
// dead are removed first. A second one of an attachment is an ErrAttached,
// unless its owner is dead. Where addresses stick, it gives those that are kept
// for the pod, see chooser. asks are the plan's, of Asks.
func (a *Allocator) Allocate(ctx context.Context, h *roles.Host, req *roles.Request, asks []Ask) ([]Grant, error) {
	grants, err := a.allocate(ctx, h, req, asks)
	if err != nil {
		return nil, a.explain(ctx, h, req.Network, err)
	}
	return grants, nil
}

// Preview tells the addresses that are next. It reserves nothing and writes
// nothing; a repeated call gives the same.
func (a *Allocator) Preview(ctx context.Context, h *roles.Host, req *roles.Request, asks []Ask) ([]Grant, error) {
	grants, err := a.preview(ctx, h, req, asks)
	if err != nil {
		return nil, a.explain(ctx, h, req.Network, err)
	}
	return grants, nil
}

// AddIPs adds addresses to a result.
func AddIPs(r *roles.Result, grants []Grant) {
	for _, g := range grants {
		ip := &types100.IPConfig{Address: roles.IPNet(netip.PrefixFrom(g.addr, g.in.Subnet.Bits()))}
		if g.in.Gateway.IsValid() {
			ip.Gateway = g.in.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
	}
}

// releaseDead makes way for a repeated ADD when the leases in the way are of a
// former life of the container: no attachment is recorded and the namespace
// that they were made for is gone. Else it is an ErrAttached.
func (a *Allocator) releaseDead(ctx context.Context, h *roles.Host, req *roles.Request) error {
	key := req.Key()
	var owned []store.Lease
	recorded := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		_, err := tx.Attachment(key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		recorded = err == nil
		pool, err := tx.Pool(a.ID(req.Network))
		if err != nil {
			return err
		}
		owned, err = pool.Owned(key)
		return err
	})
	if err != nil || len(owned) == 0 {
		return err
	}
	alive := func(l store.Lease) bool { return !a.Life.Gone(l.Netns) }
	if recorded || slices.ContainsFunc(owned, alive) {
		return fmt.Errorf("%w: container %.64q interface %q on network %q has %s since %s: run DEL first",
			roles.ErrAttached, key.ContainerID, key.IfName, key.Network, addresses(owned), since(owned))
	}
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(a.ID(req.Network))
		if err != nil {
			return err
		}
		return releaseUnchanged(pool, owned)
	})
}

// releaseUnchanged releases leases that are still as they were read.
func releaseUnchanged(pool *store.Pool, leases []store.Lease) error {
	for _, l := range leases {
		now, err := pool.Lease(l.Address)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now.Owner != l.Owner || !now.Time.Equal(l.Time) {
			continue
		}
		if err := pool.Release(l.Address); err != nil {
			return err
		}
	}
	return nil
}
