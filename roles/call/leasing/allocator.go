// Package leasing allocates addresses for the IPAM roles that keep leases in this node's
// store.
package leasing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Allocator gives out addresses by a plan and stores the leases.
type Allocator struct {
	Plan *Plan
	Life Liveness
	// Files is nil if leases are not repeated in files.
	Files LeaseFiles
}

// ID returns the pool of a network.
func (a *Allocator) ID(network string) store.PoolID {
	return store.PoolID{DataDir: a.Plan.DataDir, Network: network}
}

// AddIPs adds addresses to a result.
func AddIPs(r *roles.Result, grants []Grant) {
	for _, g := range grants {
		r.IPs = append(r.IPs, roles.ResultIP(netip.PrefixFrom(g.addr, g.in.Subnet.Bits()), g.in.Gateway))
	}
}

// releaseDead releases the leases of an earlier ADD of the same attachment if no
// attachment is recorded and the namespace of the leases does not exist. Otherwise it
// returns an ErrAttached.
func (a *Allocator) releaseDead(ctx context.Context, h *roles.Host, req *roles.Request) error {
	key := req.Key()
	var owned []store.Lease
	recorded := false
	err := h.Store.ViewPool(ctx, a.ID(req.Network), func(tx *store.Tx, pool *store.Pool) error {
		_, err := tx.Attachment(key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		recorded = err == nil
		owned, err = pool.Owned(key)
		return err
	})
	if err != nil || len(owned) == 0 {
		return err
	}
	alive := func(l store.Lease) bool { return !a.Life.Gone(l.Netns) }
	if recorded || slices.ContainsFunc(owned, alive) {
		first := slices.MinFunc(owned, func(a, b store.Lease) int { return a.Time.Compare(b.Time) }).Time
		return fmt.Errorf("%w: container %.64q interface %q on network %q has %s since %s: run DEL first",
			roles.ErrAttached, key.ContainerID, key.IfName, key.Network, addresses(owned), first.UTC().Format(time.RFC3339))
	}
	return h.Store.UpdatePool(ctx, a.ID(req.Network), func(_ *store.Tx, pool *store.Pool) error { return releaseUnchanged(pool, owned) })
}

// releaseUnchanged releases those leases that have not changed since they were read.
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
