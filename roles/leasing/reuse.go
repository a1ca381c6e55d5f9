package leasing

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// open limits the plan to Plan.Within and opens the data for Plan.Reuse.
func (c *chooser) open(tx *store.Tx, id store.PoolID) error {
	if c.plan.Within != nil {
		sets, err := c.plan.Within(tx, c.now)
		if err != nil {
			return err
		}
		limited := *c.plan
		limited.Sets, c.plan = sets, &limited
	}
	if c.plan.Reuse == nil {
		return nil
	}
	err := tx.EachPool("", func(other *store.Pool) error {
		is := other.ID().DataDir == id.DataDir || recovery.IsPoolUnknown(other.ID())
		if is && other.ID().Network != id.Network {
			c.others = append(c.others, other)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.freed, err = tx.Freed(id)
	return err
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

// isFree reports whether an address has no lease and does not cool down.
func (c *chooser) isFree(a netip.Addr) (bool, error) {
	if _, cools := c.cooling(a); cools {
		return false, nil
	}
	_, err := c.lease(a)
	return errors.Is(err, store.ErrNotFound), ignoring(err, store.ErrNotFound)
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
func (c *chooser) preferred(set int) (Grant, bool, error) {
	for i := range c.plan.Sets[set] {
		in := &c.plan.Sets[set][i]
		for _, f := range in.Free {
			a, ok, err := c.next(f.Lo, f.Hi)
			if err != nil {
				return Grant{}, false, err
			}
			if ok {
				return Grant{addr: a, in: in, origin: unused}, true, nil
			}
		}
		if g, ok, err := c.longest(in); ok || err != nil {
			return g, ok, err
		}
	}
	return Grant{}, false, nil
}

// longest returns the address of a range that has been free for the longest time,
// does not cool down and is not kept.
func (c *chooser) longest(in *Range) (Grant, bool, error) {
	for f, err := range c.freed.Oldest() {
		if err != nil {
			return Grant{}, false, err
		}
		if !in.Allows(f.Address) {
			continue
		}
		if free, err := c.isFree(f.Address); err != nil || !free {
			if err != nil {
				return Grant{}, false, err
			}
			continue
		}
		g := Grant{addr: f.Address, in: in, origin: longest}
		if c.kept == nil {
			return g, true, nil
		}
		r, err := c.kept.ReservationAt(f.Address)
		if errors.Is(err, store.ErrNotFound) {
			return g, true, nil
		}
		if err != nil {
			return Grant{}, false, err
		}
		if r.Stage(c.now) == store.Expired {
			g.origin, g.of = expired, r.Identity
			return g, true, nil
		}
	}
	return Grant{}, false, nil
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
