package leasing

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// chooser returns a chooser for a pool within a transaction on node.db. kept is nil without Plan.Sticky.
func (a *Allocator) chooser(tx *store.Tx, pool *store.Pool, kept *store.StickyPool, h *roles.Host, now time.Time) (*chooser, error) {
	c := &chooser{plan: a.Plan, pool: pool, kept: kept, now: now}
	c.untouched = append(c.untouched, pool.Next, c.nextUnavoided)
	if kept != nil {
		c.untouched = append(c.untouched, kept.Next)
	}
	if a.Plan.Within != nil {
		sets, err := a.Plan.Within(tx, h)
		if err != nil {
			return nil, err
		}
		limited := *a.Plan
		limited.Sets, c.plan = sets, &limited
	}
	if a.Plan.Reuse == nil {
		return c, nil
	}
	err := tx.EachPool("", func(other *store.Pool) error {
		hasAddresses := other.ID().DataDir == pool.ID().DataDir || recovery.IsPoolUnknown(other.ID())
		if hasAddresses && other.ID().Network != pool.ID().Network {
			c.others, c.untouched = append(c.others, other), append(c.untouched, other.Next)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.freed, err = tx.Freed(pool.ID())
	if err != nil {
		return nil, err
	}
	c.untouched = append(c.untouched, c.freed.Next)
	return c, nil
}

// lease returns an address's lease in this pool or in another network's. If there is
// none, the error is store.ErrNotFound.
func (c *chooser) lease(a netip.Addr) (*store.Lease, error) {
	if slices.Contains(c.avoid, a) {
		return &store.Lease{Address: a, Owner: store.Key{ContainerID: "another program's"}}, nil
	}
	l, err := c.pool.Lease(a)
	for _, o := range c.others {
		if !errors.Is(err, store.ErrNotFound) {
			break
		}
		l, err = o.Lease(a)
	}
	return l, err
}

// isFree reports whether an address has no lease and does not cool down. After an error it does not.
func (c *chooser) isFree(a netip.Addr) bool {
	if _, cools := c.cooling(a); cools {
		return false
	}
	_, err := c.lease(a)
	c.err = cmp.Or(c.err, ignoring(err, store.ErrNotFound))
	return c.err == nil && err != nil
}

// cooling reports whether an address cools down, and until when. A release in the
// future, from before the clock was set back, is ignored: the address would cool down
// for too long.
func (c *chooser) cooling(a netip.Addr) (until time.Time, ok bool) {
	if c.freed == nil {
		return until, false
	}
	at, ok := c.freed.At(a)
	until = at.Add(c.plan.Reuse.Cooldown)
	return until, ok && !at.After(c.now) && c.now.Before(until)
}

// preferred returns an address of the first range with a free address. It prefers an
// address that was never leased to the one that has been free for the longest time.
func (c *chooser) preferred(set int) Grant {
	for i := range c.plan.Sets[set] {
		in := &c.plan.Sets[set][i]
		for _, f := range in.Free {
			if a := c.next(f.Lo, f.Hi); a.IsValid() || c.err != nil {
				return Grant{addr: a, in: in, origin: unused}
			}
		}
		if g := c.longest(in); g.in != nil || c.err != nil {
			return g
		}
	}
	return Grant{}
}

// longest returns the address of a range that has been free for the longest time,
// does not cool down and is not kept.
func (c *chooser) longest(in *Range) Grant {
	for f, err := range c.freed.Oldest() {
		if err != nil {
			return c.fail(err)
		}
		if !in.Allows(f.Address) || !c.isFree(f.Address) {
			continue
		}
		g := Grant{addr: f.Address, in: in, origin: longest}
		if c.kept == nil {
			return g
		}
		r, err := c.kept.ReservationAt(f.Address)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return g
		case err != nil:
			return c.fail(err)
		case r.Stage(c.now) == store.Expired:
			g.origin, g.of = expired, r.Identity
			return g
		}
	}
	return Grant{}
}

// coolingText returns the number of cooling addresses of a set and the time at which the
// first may be given out, as a text for an error.
func (c *chooser) coolingText(set int) (string, error) {
	if c.freed == nil {
		return "", nil
	}
	n := 0
	var next time.Time
	for f, err := range c.freed.Oldest() {
		if err != nil {
			return "", err
		}
		until, cools := c.cooling(f.Address)
		if !cools || !slices.ContainsFunc(c.plan.Sets[set], func(r Range) bool { return r.Allows(f.Address) }) {
			continue
		}
		n++
		if n == 1 {
			next = until
		}
	}
	text := fmt.Sprintf("; %d cooling down", n)
	if n > 0 {
		text += ", the next is free at " + next.Format(time.RFC3339)
	}
	if c.plan.Reuse.Hint != "" {
		text += "; " + c.plan.Reuse.Hint
	}
	return text, nil
}
