package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/store"
)

// errRepeated means that the attachment has leases already. The package does not return
// it to callers.
var errRepeated = errors.New("has addresses already")

// errNotImported means that the reference's files were not imported yet. The package does
// not return it to callers.
var errNotImported = errors.New("files not imported")

// forgetAfter is the age at which expired reservations and released addresses are
// deleted. forgetBatch is the largest number of deletions in one ADD.
const (
	forgetAfter = 24 * time.Hour
	forgetBatch = 8
)

// attempt is the state of one ADD that tries to get addresses.
type attempt struct {
	lease store.Lease
	bySet []AddressRequest
	// identity is the pod's identity, for which the addresses are kept; empty without
	// Plan.Sticky.
	identity string
	// released, evicted and reaped mark the remedies that were tried.
	released, evicted, reaped bool
	// another means that the identity's own addresses are in use, so it gets others.
	another bool
	// imported means that the reference's files were imported.
	imported bool
	// avoid are addresses that have files of other programs.
	avoid []netip.Addr
}

// Allocate gives an attachment one address of every set, or none at all. If a set is
// exhausted, or a requested address is taken, it removes owners that are certainly dead
// and tries again: after a failure it applies each possible remedy once. A repeated call
// for an attachment is an ErrAttached, unless the earlier owner is dead. Sticky pools give
// the addresses that are kept for the pod; see chooser. bySet comes from
// Plan.AddressRequests.
func (a *Allocator) Allocate(ctx context.Context, h *roles.Host, req *roles.Request, bySet []AddressRequest) ([]Grant, error) {
	t := &attempt{
		lease: store.Lease{Owner: req.Key(), Netns: a.Life.Netns(req.Netns), Pod: req.Pod(), Time: h.Now(), Mirrored: a.Mirrors(h, req.Network)},
		bySet: bySet,
	}
	if a.Plan.Sticky != nil {
		t.identity = a.Plan.Sticky.Identity(req, a.macOf(req))
		t.lease.Sticky = t.identity
	}
	for {
		grants, err := a.reserve(ctx, h, t)
		if err == nil && t.lease.Mirrored {
			err = a.createFiles(ctx, h, t, grants)
		}
		if err == nil {
			return grants, nil
		}
		again, remedyErr := a.remedy(ctx, h, req, t, err)
		if remedyErr != nil || !again {
			return nil, a.explain(ctx, h, req.Network, cmp.Or(remedyErr, err))
		}
	}
}

// Preview returns the addresses that Allocate would give next. It writes nothing, so
// a repeated call returns the same.
func (a *Allocator) Preview(ctx context.Context, h *roles.Host, req *roles.Request, bySet []AddressRequest) (grants []Grant, err error) {
	err = a.view(ctx, h, req.Network, func(c *chooser) error {
		c.lenient = a.Plan.Lenient
		if c.kept != nil {
			c.last = !a.Plan.Sticky.Strict
			err := c.find(a.Plan.Sticky.Identity(req, a.macOf(req)), req.Key())
			var held *heldError
			if err != nil && (!errors.As(err, &held) || a.Plan.Sticky.Strict) {
				return err
			}
		}
		grants, err = c.chooseAll(bySet)
		return err
	})
	if err != nil {
		return nil, a.explain(ctx, h, req.Network, err)
	}
	return grants, nil
}

// macOf returns the requested hardware address, or "".
func (a *Allocator) macOf(req *roles.Request) string {
	if a.Plan.MAC != "" {
		return a.Plan.MAC
	}
	return req.Args.Get("MAC")
}

// remedy removes the cause of a failed attempt, if it can. It reports whether to try
// again.
func (a *Allocator) remedy(ctx context.Context, h *roles.Host, req *roles.Request, t *attempt, err error) (again bool, failure error) {
	var held *heldError
	var file *FileError
	switch {
	case errors.Is(err, errNotImported):
		t.imported = true
		return true, a.Files.Import(ctx, h, a.ID(req.Network))
	case errors.As(err, &file):
		t.avoid = append(t.avoid, file.Address)
		return true, a.Files.Import(ctx, h, a.ID(req.Network))
	case errors.Is(err, errRepeated) && !t.released:
		t.released = true
		return true, a.releaseDead(ctx, h, req)
	case errors.As(err, &held):
		return a.evict(ctx, h, t, held)
	case (errors.Is(err, roles.ErrExhausted) || errors.Is(err, store.ErrTaken)) && !t.reaped:
		t.reaped = true
		freed, reapErr := a.Life.Reap(ctx, h, req.Network)
		if reapErr != nil {
			h.Log.Warn("reap dead attachments", "network", req.Network, "error", reapErr)
		}
		if a.Plan.Sticky != nil {
			return true, releaseAbandoned(ctx, h, a.ID(req.Network))
		}
		return freed > 0 || a.Plan.Lenient && errors.Is(err, store.ErrTaken), nil
	}
	return false, nil
}

// evict removes the attachment that has the identity's addresses if it is certainly dead.
// Otherwise the pod gets other addresses, or in strict mode an error.
func (a *Allocator) evict(ctx context.Context, h *roles.Host, t *attempt, held *heldError) (again bool, failure error) {
	if !t.evicted {
		t.evicted = true
		removed, err := a.Life.ReapOne(ctx, h, held.holder)
		if err != nil {
			h.Log.Warn("check the pod's old sandbox", "container", held.holder.ContainerID, "ifname", held.holder.IfName, "error", err)
		}
		if removed {
			return true, nil
		}
	}
	if a.Plan.Sticky.Strict {
		return false, nil
	}
	h.Log.Info("the pod's old sandbox lives, giving it another address", "identity", held.identity, "container", held.holder.ContainerID, "addresses", held.addrs)
	t.another = true
	return true, nil
}

// reserve runs reserveIn in a transaction on node.db; for a sticky pool, within one
// on keep.db.
func (a *Allocator) reserve(ctx context.Context, h *roles.Host, t *attempt) (out []Grant, err error) {
	if a.Plan.Sticky == nil {
		err := h.Store.Update(ctx, func(tx *store.Tx) error {
			out, err = a.reserveIn(tx, nil, h, t)
			return err
		})
		return out, err
	}
	reserved := false
	err = updateSticky(ctx, h, a.ID(t.lease.Owner.Network), func(kept *store.StickyPool) error {
		err := h.Store.Update(ctx, func(tx *store.Tx) error {
			out, err = a.reserveIn(tx, kept, h, t)
			return err
		})
		reserved = err == nil
		return err
	})
	if err != nil && reserved {
		// The leases are stored, but the reservation is not.
		err = errors.Join(err, deleteAll(ctx, h, t.lease.Owner))
	}
	return out, err
}

// deleteAll deletes the leases of a failed ADD.
func deleteAll(ctx context.Context, h *roles.Host, owner store.Key) error {
	return h.Store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := tx.DeleteLeases(owner)
		return err
	})
}

// reserveIn takes an address of every set. After an error the transaction must not be
// committed. kept is nil without Plan.Sticky.
func (a *Allocator) reserveIn(tx *store.Tx, kept *store.StickyPool, h *roles.Host, t *attempt) ([]Grant, error) {
	id := a.ID(t.lease.Owner.Network)
	pool, err := tx.Pool(id)
	if err != nil {
		return nil, err
	}
	if t.lease.Mirrored && !pool.Imported() {
		if !t.imported {
			return nil, errNotImported
		}
		if err := pool.SetImported(); err != nil {
			return nil, err
		}
	}
	if err := recovery.MoveLeases(tx, id, a.Plan.adopts); err != nil {
		return nil, err
	}
	owned, err := pool.Owned(t.lease.Owner)
	if err != nil {
		return nil, err
	}
	if len(owned) > 0 {
		return nil, errRepeated
	}
	c, err := a.chooser(tx, pool, kept, h, t.lease.Time)
	if err != nil {
		return nil, err
	}
	c.lenient, c.avoid = a.Plan.Lenient && t.reaped, t.avoid
	if kept != nil {
		c.last = t.reaped && !a.Plan.Sticky.Strict
		if err := a.begin(c, h.Store.BootID(), t); err != nil {
			return nil, err
		}
	}
	grants, err := c.chooseAll(t.bySet)
	if err != nil {
		return nil, err
	}
	for i, g := range grants {
		lease := t.lease
		lease.Address, lease.Set, lease.Source, lease.NIC, lease.Quiet = g.addr, i, g.in.Source, g.in.NIC, g.in.Quiet
		if err := pool.Reserve(lease); err != nil {
			return nil, err
		}
		if c.freed == nil && (g.origin == unused || g.origin == requested) {
			if err := pool.SetCursor(i, g.addr); err != nil {
				return nil, err
			}
		}
	}
	if err := pool.SetSizes(c.plan.sizes()); err != nil {
		return nil, err
	}
	if c.freed != nil {
		if err := c.freed.Forget(c.now.Add(-forgetAfter), forgetBatch); err != nil {
			return nil, err
		}
	}
	if kept == nil {
		return grants, nil
	}
	return grants, a.keep(c, h.Store.BootID(), t, grants)
}

// begin finds the identity's reservation. If the pool is used for the first time in a
// boot, it first releases the reservations that were held in earlier boots, because those
// containers do not exist.
func (a *Allocator) begin(c *chooser, boot string, t *attempt) error {
	if c.kept.Boot() != boot {
		if err := releaseAbandonedIn(c.kept, c.pool, c.now); err != nil {
			return err
		}
		if err := c.kept.SetBoot(boot); err != nil {
			return err
		}
	}
	if t.another {
		return nil
	}
	return c.find(t.identity, t.lease.Owner)
}

// keep stores the reservation of the given addresses. An old reservation of the identity
// that another attachment still uses moves to that attachment's container ID, so that it
// only cools down. An operator's reservation that could not be used stays unchanged.
func (a *Allocator) keep(c *chooser, boot string, t *attempt, grants []Grant) error {
	r := store.Reservation{
		Identity: t.identity, Holder: t.lease.Owner, Pod: t.lease.Pod, BootID: boot,
		TTL: a.Plan.Sticky.TTL, Cooldown: a.Plan.Sticky.Cooldown, Created: c.now, Used: c.now,
	}
	for _, g := range grants {
		r.Addresses = append(r.Addresses, g.addr)
	}
	old, err := c.kept.Reservation(t.identity)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return err
	case c.own != nil:
		r.Created, r.Pinned, r.Until = old.Created, old.Pinned, old.Until
	case old.Pinned:
		r.Identity, r.TTL = sticky.ContainerIdentity(t.lease.Owner), 0
	case t.another:
		if err := displace(c.kept, *old); err != nil {
			return err
		}
	}
	if err := c.kept.Put(&r); err != nil {
		return err
	}
	_, err = c.kept.Forget(c.now.Add(-forgetAfter), forgetBatch)
	return err
}

// displace moves a reservation to the identity of the container that still uses the
// addresses.
func displace(pool *store.StickyPool, r store.Reservation) error {
	if err := pool.Delete(r.Identity); err != nil {
		return err
	}
	r.Identity, r.TTL = sticky.ContainerIdentity(r.Holder), 0
	return pool.Put(&r)
}

// explain adds the set's usage to the error of an exhausted set.
func (a *Allocator) explain(ctx context.Context, h *roles.Host, network string, err error) error {
	var full *exhaustedError
	if !errors.As(err, &full) {
		return err
	}
	text := ""
	viewErr := a.view(ctx, h, network, func(c *chooser) error {
		var err error
		if text, err = c.plan.describe(c, full.set); err != nil {
			return err
		}
		cools, err := c.coolingText(full.set)
		text += cools
		if err != nil || c.kept == nil {
			return err
		}
		waiting, err := c.waitingText(full.set)
		text += waiting
		return err
	})
	if viewErr != nil {
		return errors.Join(err, viewErr)
	}
	return fmt.Errorf("%w: network %q, %s", roles.ErrExhausted, network, text)
}

// view calls f with a chooser in a read-only transaction.
func (a *Allocator) view(ctx context.Context, h *roles.Host, network string, f func(*chooser) error) error {
	within := func(kept *store.StickyPool) error {
		return h.Store.ViewPool(ctx, a.ID(network), func(tx *store.Tx, pool *store.Pool) error {
			c, err := a.chooser(tx, pool, kept, h, h.Now())
			if err != nil {
				return err
			}
			return f(c)
		})
	}
	if a.Plan.Sticky == nil {
		return within(nil)
	}
	return h.Store.KeepView(ctx, func(keep *store.KeepTx) error {
		kept, err := keep.Sticky(a.ID(network))
		if err != nil {
			return err
		}
		return within(kept)
	})
}

// waitingText returns the number of kept and cooling addresses of a set, as a text for an
// error.
func (c *chooser) waitingText(set int) (string, error) {
	n := map[store.Stage]int{}
	for w, err := range c.kept.Waiting() {
		if err != nil {
			return "", err
		}
		r, err := c.kept.Reservation(w.Identity)
		if err != nil {
			return "", err
		}
		if c.free(set, r).in != nil {
			n[w.Stage(c.now)]++
		}
	}
	return fmt.Sprintf("; %d kept for others, %d cooling down", n[store.Kept], n[store.Cooling]), c.err
}
