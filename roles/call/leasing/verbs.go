package leasing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// GCBatch is the number of stale owners that GC releases in one transaction.
const GCBatch = 256

// Check returns an error unless the attachment has a lease in every range set, and a
// lease for every address of prevResult that is in these sets, and every lease has its
// file. It writes nothing.
func (a *Allocator) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is required for CHECK"}
	}
	var owned []store.Lease
	err := h.Store.ViewPool(ctx, a.ID(req.Network), func(tx *store.Tx, pool *store.Pool) (err error) {
		owned, err = pool.Owned(req.Key())
		if err == nil && len(owned) == 0 {
			owned, err = pool.Owned(oldKey(req))
		}
		if err != nil {
			return err
		}
		unsettled, err := recovery.LeasesOfUnknownPool(tx, req.Key())
		owned = append(owned, unsettled...)
		return err
	})
	if err != nil {
		return err
	}
	errs := a.differences(req, owned)
	if a.Mirrors(h, req.Network) {
		for _, l := range a.Files.Missing(a.ID(req.Network), owned) {
			errs = append(errs, fmt.Errorf("%w: host-local's directory %q has no file of address %s on network %q, so the reference's host-local would give it to another container: run 'cnibox state export --format host-local %s'",
				roles.ErrCheck, a.Plan.DataDir, l.Address, req.Network, a.Plan.DataDir))
		}
	}
	return errors.Join(errs...)
}

func (a *Allocator) differences(req *roles.Request, owned []store.Lease) []error {
	var errs []error
	for i, s := range a.Plan.Sets {
		ofSet := func(l store.Lease) bool { return l.Set == i || s.RangeOf(l.Address) != nil }
		if !slices.ContainsFunc(owned, ofSet) {
			errs = append(errs, fmt.Errorf("%w: container %.64q interface %q on network %q has no address of %s",
				roles.ErrCheck, req.ContainerID, req.IfName, req.Network, a.Plan.setName(i)))
		}
	}
	for _, ip := range req.PrevResult.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		ours := func(s Set) bool { return s.RangeOf(addr) != nil }
		if !ok || !slices.ContainsFunc(a.Plan.Sets, ours) {
			continue // the address is another plugin's
		}
		if !slices.ContainsFunc(owned, func(l store.Lease) bool { return l.Address == addr }) {
			errs = append(errs, fmt.Errorf("%w: address %s of prevResult is not leased to container %.64q interface %q on network %q",
				roles.ErrCheck, addr, req.ContainerID, req.IfName, req.Network))
		}
	}
	return errs
}

// GC releases the addresses of this pool whose owners are not in req.Valid. It skips
// owners that another call works on, and owners with a recorded attachment: their
// interface may still use the address, so the interface role's GC releases it.
func (a *Allocator) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	stale, err := a.stale(ctx, h, req)
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(stale, GCBatch) {
		errs = append(errs, a.collect(ctx, h, req.Network, batch))
	}
	if a.Plan.Sticky != nil {
		err := releaseAbandoned(ctx, h, a.ID(req.Network))
		if errors.Is(err, store.ErrUnwritable) {
			h.Log.Warn("reservations of dead containers stay held: keep.db cannot be written", "network", req.Network, "error", err)
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// stale returns the owners that GC may release.
func (a *Allocator) stale(ctx context.Context, h *roles.Host, req *roles.Request) ([]store.Key, error) {
	valid := make(map[store.Key]bool, 2*len(req.Valid))
	for _, v := range req.Valid {
		valid[store.Key{Network: req.Network, ContainerID: v.ContainerID, IfName: v.IfName}] = true
		valid[store.Key{Network: req.Network, ContainerID: v.ContainerID}] = true
	}
	var out []store.Key
	err := h.Store.ViewPool(ctx, a.ID(req.Network), func(_ *store.Tx, pool *store.Pool) error {
		for l, err := range pool.Leases() {
			if err != nil {
				return err
			}
			if !valid[l.Owner] {
				valid[l.Owner] = true // list each owner once
				out = append(out, l.Owner)
			}
		}
		return nil
	})
	return out, err
}

// collect releases a batch of owners in one transaction, under their locks.
func (a *Allocator) collect(ctx context.Context, h *roles.Host, network string, keys []store.Key) error {
	var held []store.Key
	for _, k := range keys {
		lock, ok, err := h.Store.TryLockAttachment(ctx, k)
		if err != nil {
			return err
		}
		if ok {
			defer lock.Unlock()
			held = append(held, k)
		}
	}
	return h.Store.UpdatePool(ctx, a.ID(network), func(tx *store.Tx, pool *store.Pool) error {
		for _, k := range held {
			if err := releaseUnrecorded(tx, pool, k); err != nil {
				return err
			}
		}
		return nil
	})
}

// releaseUnrecorded releases an owner's leases unless its attachment is recorded. The files
// of imported leases stay until the next GC, because the GC of chained roles, which follows,
// finds in them the owners of the reference's objects.
func releaseUnrecorded(tx *store.Tx, pool *store.Pool, key store.Key) error {
	if _, err := tx.Attachment(key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	owned, err := pool.Owned(key)
	if err != nil {
		return err
	}
	for _, l := range owned {
		release := pool.Release
		if l.Imported {
			release = pool.Forget
		}
		if err := release(l.Address); err != nil {
			return err
		}
	}
	return nil
}

// Status returns nil if every range set has a free address, or an owner that is certainly
// dead, which the next ADD would remove. If dead owners did not count, a node full of
// them would be reported as not ready, would get no ADD, and would stay full. Status
// writes nothing.
func (a *Allocator) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	full, isFull := 0, false
	err := a.view(ctx, h, req.Network, func(c *chooser) (err error) {
		c.last = c.kept != nil && !a.Plan.Sticky.Strict
		full, isFull, err = c.emptySet()
		return err
	})
	if err == nil && isFull {
		var dead bool
		if dead, err = a.Life.AnyDead(ctx, h, req.Network); err == nil && !dead {
			err = a.explain(ctx, h, req.Network, a.Plan.exhausted(full))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

// addresses returns the addresses of leases as a text.
func addresses(leases []store.Lease) string {
	var out []string
	for _, l := range leases {
		out = append(out, l.Address.String())
	}
	return strings.Join(out, ", ")
}
