package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// gcBatch is how many stale owners GC releases in one transaction.
const gcBatch = 256

// Del releases every address of an attachment, also those that were given
// under another configuration. An attachment without any is success.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	// Not to import would lose nothing now, but a later import would bring the
	// address back, with nobody but GC left to release it.
	importErr := a.importIfPossible(ctx, h, req.Network)
	return errors.Join(importErr, release(ctx, h, req))
}

// undoer is for a configuration with faults: leases are found by their owner,
// without ranges. It imports nothing, for which the ranges are needed.
type undoer struct{}

// Add is not called.
func (undoer) Add(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
	return nil, roles.ErrConf
}

// Del releases what the attachment has.
func (undoer) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return release(ctx, h, req)
}

// oldKey is the owner of leases taken over from files of before 2018, which
// name no interface.
func oldKey(req *roles.Request) store.Key {
	return store.Key{Network: req.Network, ContainerID: req.ContainerID}
}

// Check makes sure that the attachment holds an address of every range set,
// and every address of prevResult that is of these sets. Only the first use of
// a pool writes anything: it takes the reference plugin's files over, without
// which a container of theirs would be found missing.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is required for CHECK"}
	}
	if err := a.importOnce(ctx, h, req.Network, lockDeadline); err != nil {
		return err
	}
	var owned []store.Lease
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(a.poolID(req.Network))
		if err != nil {
			return err
		}
		owned, err = pool.Owned(req.Key())
		if err == nil && len(owned) == 0 {
			owned, err = pool.Owned(oldKey(req))
		}
		if err != nil {
			return err
		}
		unsettled, err := node.UnsettledLeases(tx, req.Key())
		owned = append(owned, unsettled...)
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(a.differences(req, owned)...)
}

func (a *handler) differences(req *roles.Request, owned []store.Lease) []error {
	var errs []error
	for i, s := range a.plan.sets {
		ofSet := func(l store.Lease) bool { return l.Set == i || s.rangeOf(l.Address) != nil }
		if !slices.ContainsFunc(owned, ofSet) {
			errs = append(errs, fmt.Errorf("%w: container %.64q interface %q on network %q holds no address of range set %d (%s)",
				roles.ErrCheck, req.ContainerID, req.IfName, req.Network, i, s))
		}
	}
	for _, ip := range req.PrevResult.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		ours := func(s rangeSet) bool { return s.rangeOf(addr) != nil }
		if !ok || !slices.ContainsFunc(a.plan.sets, ours) {
			continue // another plugin's
		}
		if !slices.ContainsFunc(owned, func(l store.Lease) bool { return l.Address == addr }) {
			errs = append(errs, fmt.Errorf("%w: address %s of prevResult is not held by container %.64q interface %q on network %q",
				roles.ErrCheck, addr, req.ContainerID, req.IfName, req.Network))
		}
	}
	return errs
}

// GC releases the addresses of this pool whose owners are not in req.Valid. It
// leaves alone an owner that some process works on, and one with a recorded
// attachment: its interface role decides about that, and its address may still
// be in use.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.importIfPossible(ctx, h, req.Network); err != nil {
		return err
	}
	stale, err := a.stale(ctx, h, req)
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(stale, gcBatch) {
		errs = append(errs, a.collect(ctx, h, req.Network, batch))
	}
	if a.plan.sticky != nil {
		errs = append(errs, settle(ctx, h, a.poolID(req.Network)))
	}
	return errors.Join(errs...)
}

// stale lists the owners that GC may release.
func (a *handler) stale(ctx context.Context, h *roles.Host, req *roles.Request) ([]store.Key, error) {
	valid := make(map[store.Key]bool, 2*len(req.Valid))
	for _, v := range req.Valid {
		valid[store.Key{Network: req.Network, ContainerID: v.ContainerID, IfName: v.IfName}] = true
		valid[store.Key{Network: req.Network, ContainerID: v.ContainerID}] = true
	}
	var out []store.Key
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(a.poolID(req.Network))
		if err != nil {
			return err
		}
		for l, err := range pool.Leases() {
			if err != nil {
				return err
			}
			if !valid[l.Owner] {
				valid[l.Owner] = true // seen
				out = append(out, l.Owner)
			}
		}
		return nil
	})
	return out, err
}

// collect releases a batch of owners in one transaction, under their locks.
func (a *handler) collect(ctx context.Context, h *roles.Host, network string, keys []store.Key) error {
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
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(a.poolID(network))
		if err != nil {
			return err
		}
		for _, k := range held {
			if err := releaseUnrecorded(tx, pool, k); err != nil {
				return err
			}
		}
		return nil
	})
}

// releaseUnrecorded releases an owner's leases unless an attachment of it is recorded.
func releaseUnrecorded(tx *store.Tx, pool *store.Pool, key store.Key) error {
	if _, err := tx.Attachment(key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	owned, err := pool.Owned(key)
	if err != nil {
		return err
	}
	for _, l := range owned {
		if err := pool.Release(l.Address); err != nil {
			return err
		}
	}
	return nil
}

// Status returns nil when every range set has a free address, or has an owner
// that is certainly dead: the next ADD would remove it. (Were that not counted,
// a node full of dead owners would be reported as not ready, get no ADD, and
// stay so.) It writes nothing. A data directory that is still to be taken over
// must be readable.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	err := a.importable(ctx, h, req.Network)
	full, isFull := 0, false
	if err == nil {
		err = a.view(ctx, h, req.Network, func(c *chooser) error {
			c.last = c.kept != nil && !a.plan.sticky.Strict
			full, isFull, err = c.emptySet()
			return err
		})
	}
	if err == nil && isFull {
		var dead bool
		if dead, err = a.life.anyDead(ctx, h, req.Network); err == nil && !dead {
			err = a.explain(ctx, h, req.Network, &exhaustedError{full})
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

// addresses lists the addresses of leases.
func addresses(leases []store.Lease) string {
	var out []string
	for _, l := range leases {
		out = append(out, l.Address.String())
	}
	return strings.Join(out, ", ")
}

// since is when the first of the leases was made.
func since(leases []store.Lease) string {
	var first time.Time
	for _, l := range leases {
		if first.IsZero() || l.Time.Before(first) {
			first = l.Time
		}
	}
	return first.UTC().Format(time.RFC3339)
}
