package leasing

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// origin is why an address was chosen.
type origin int

// The origins of addresses, in order of preference.
const (
	requested origin = iota
	kept             // it was kept for the identity
	unused           // nobody had it, as far as is known
	longest          // it is free for longest; whose it was is not known
	expired          // it was another's, who was released long ago
	cooling          // it was another's, who was released just now; nothing else was left
	given            // it is kept for another; nothing else was left
)

// Grant is an address of one set.
type Grant struct {
	addr   netip.Addr
	in     *Range
	origin origin
	// of is the identity that had it, of the origins from kept on.
	of string
}

// Address is the one given.
func (g Grant) Address() netip.Addr { return g.addr }

// NIC is that of the address's Range.
func (g Grant) NIC() string { return g.in.NIC }

// chooser finds addresses for one attachment. It changes nothing.
type chooser struct {
	plan *Plan
	pool *store.Pool
	// freed is nil without Plan.Reuse.
	freed *store.Freed
	// others are the pools of other networks with the same addresses.
	others []*store.Pool
	// kept is nil where addresses do not stick.
	kept *store.StickyPool
	now  time.Time
	// own is the identity's reservation, nil when there is none or it cannot be
	// used as a whole.
	own *store.Reservation
	// last: nothing else is left, what is kept for others may be given away.
	last bool
	// lenient: a requested address that is taken is passed over.
	lenient bool
}

// choose finds an address of one set. The order is: the requested one, the one
// kept for the identity, one that nobody is known to have had, round robin or by
// preference, the one that has been free for longest; then, as the last resort,
// what cools down and what is kept for others.
func (c *chooser) choose(set int, req Ask) (Grant, error) {
	if req.addr.IsValid() {
		g, err := c.requested(set, req)
		if err == nil || !c.lenient || !errors.Is(err, store.ErrTaken) {
			return g, err
		}
	}
	if g, ok := c.ownGrant(set); ok {
		return g, nil
	}
	find := c.unused
	if c.plan.Reuse != nil {
		find = c.preferred
	}
	if g, ok, err := find(set); ok || err != nil {
		return g, err
	}
	stages := []store.Stage{store.Expired}
	if c.last {
		stages = append(stages, store.Cooling, store.Kept)
	}
	for _, stage := range stages {
		if g, ok, err := c.waitingIn(set, stage); ok || err != nil {
			return g, err
		}
	}
	return Grant{}, c.plan.exhausted(set)
}

func (c *chooser) requested(set int, req Ask) (Grant, error) {
	g := Grant{addr: req.addr, in: c.plan.Sets[set].RangeOf(req.addr), origin: requested}
	l, err := c.lease(req.addr)
	if err == nil {
		return Grant{}, fmt.Errorf("%s: %w", req.path, &store.TakenError{What: "address " + req.addr.String(), Owner: l.Owner})
	}
	if !errors.Is(err, store.ErrNotFound) {
		return g, err
	}
	if c.own != nil && slices.Contains(c.own.Addresses, req.addr) {
		return g, nil
	}
	if end, cools := c.cooling(req.addr); cools {
		return Grant{}, fmt.Errorf("%s: address %s: %w: it cools down until %s", req.path, req.addr, store.ErrTaken, end.Format(time.RFC3339))
	}
	if c.kept == nil {
		return g, nil
	}
	r, err := c.kept.ReservationAt(req.addr)
	if err != nil {
		return g, ignoring(err, store.ErrNotFound)
	}
	own := c.own != nil && c.own.Identity == r.Identity
	if own || !r.Pinned && !c.plan.Sticky.Strict || r.Stage(c.now) != store.Kept && r.Stage(c.now) != store.Held {
		return g, nil
	}
	return Grant{}, fmt.Errorf("%s: address %s: %w: kept for %q %s", req.path, req.addr, store.ErrTaken, r.Identity, until(r))
}

// ignoring is err, unless it is a given one.
func ignoring(err, such error) error {
	if errors.Is(err, such) {
		return nil
	}
	return err
}

// until tells how long addresses are kept.
func until(r *store.Reservation) string {
	if r.Held() {
		return fmt.Sprintf("as container %.64q had it", r.Holder.ContainerID)
	}
	if t, ok := r.Expires(); ok {
		return "until " + t.Format(time.RFC3339)
	}
	return "for ever"
}

// ownGrant is the address of a set that is kept for the identity.
func (c *chooser) ownGrant(set int) (Grant, bool) {
	if c.own == nil {
		return Grant{}, false
	}
	for _, a := range c.own.Addresses {
		if r := c.plan.Sets[set].RangeOf(a); r != nil {
			return Grant{a, r, kept, c.own.Identity}, true
		}
	}
	return Grant{}, false
}

// unused is the next address that has neither a lease nor a reservation.
func (c *chooser) unused(set int) (Grant, bool, error) {
	s := c.plan.Sets[set]
	last, _, err := c.pool.Cursor(set)
	if err != nil {
		return Grant{}, false, err
	}
	for _, part := range s.order(last) {
		a, ok, err := c.next(part.Lo, part.Hi)
		if err != nil {
			return Grant{}, false, err
		}
		if ok {
			return Grant{addr: a, in: part.in, origin: unused}, true, nil
		}
	}
	return Grant{}, false, nil
}

// next is the lowest address from lo to hi that has neither lease nor reservation
// and is not known to have been leased.
func (c *chooser) next(lo, hi netip.Addr) (netip.Addr, bool, error) {
	a, ok, err := c.pool.Next(lo, hi)
	if !ok || err != nil || c.kept == nil && c.freed == nil {
		return a, ok, err
	}
	for {
		passed := a
		if c.kept != nil {
			a, ok, err = c.kept.Next(a, hi)
		}
		if ok && err == nil && c.freed != nil {
			a, ok, err = c.freed.Next(a, hi)
		}
		for _, o := range c.others {
			if ok && err == nil {
				a, ok, err = o.Next(a, hi)
			}
		}
		if ok && err == nil && a != passed {
			a, ok, err = c.pool.Next(a, hi)
		}
		if !ok || err != nil || a == passed {
			return a, ok, err
		}
	}
}

// waitingIn is an address of the reservations in a stage that no lease has, of the
// one that is free first.
func (c *chooser) waitingIn(set int, stage store.Stage) (Grant, bool, error) {
	if c.kept == nil {
		return Grant{}, false, nil
	}
	for w, err := range c.kept.Waiting() {
		if err != nil {
			return Grant{}, false, err
		}
		at := w.Stage(c.now)
		if stage == store.Expired && at != stage {
			break // those after it are free later
		}
		if at != stage || w.Pinned && stage == store.Kept {
			continue
		}
		r, err := c.kept.Reservation(w.Identity)
		if err != nil {
			return Grant{}, false, err
		}
		g, ok, err := c.free(set, r)
		if ok || err != nil {
			g.origin = map[store.Stage]origin{store.Expired: expired, store.Cooling: cooling, store.Kept: given}[stage]
			return g, ok, err
		}
	}
	return Grant{}, false, nil
}

// free is a reservation's address of a set, if it may be handed out and no
// lease has it.
func (c *chooser) free(set int, r *store.Reservation) (Grant, bool, error) {
	for _, a := range r.Addresses {
		in := c.plan.Sets[set].RangeOf(a)
		if in == nil || !in.Allows(a) {
			continue
		}
		if free, err := c.isFree(a); !free || err != nil {
			if err != nil {
				return Grant{}, false, err
			}
			continue
		}
		return Grant{addr: a, in: in, of: r.Identity}, true, nil
	}
	return Grant{}, false, nil
}

// heldError tells that another attachment has an identity's addresses.
type heldError struct {
	identity string
	holder   store.Key
	netns    store.Netns
	addrs    []netip.Addr
}

func (e *heldError) Error() string {
	return fmt.Sprintf("addresses %v of %q: %v by container %.64q interface %q: run its DEL first", e.addrs, e.identity, store.ErrTaken, e.holder.ContainerID, e.holder.IfName)
}

func (e *heldError) Is(target error) bool { return target == store.ErrTaken }

// find looks for the identity's own reservation. All of its addresses that are
// of this configuration must be free: they belong together. That another
// attachment has them is a heldError.
func (c *chooser) find(identity string, owner store.Key) error {
	r, err := c.kept.Reservation(identity)
	if err != nil || r.Broken {
		return ignoring(err, store.ErrNotFound)
	}
	usable := 0
	for _, a := range r.Addresses {
		in := c.plan.rangeOf(a)
		if in == nil {
			continue // of a range that was removed
		}
		l, err := c.lease(a)
		switch {
		case err == nil && l.Owner == r.Holder && l.Owner != owner:
			return &heldError{identity, l.Owner, l.Netns, r.Addresses}
		case err == nil || !in.Allows(a):
			return nil
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		usable++
	}
	if usable > 0 {
		c.own = r
	}
	return nil
}

// chooseAll finds an address of every set.
func (c *chooser) chooseAll(bySet []Ask) ([]Grant, error) {
	var out []Grant
	for i, req := range bySet {
		g, err := c.choose(i, req)
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// emptySet returns the first set without an address to give; ok is false when
// all have one. What dead attachments held counts as one: ADD would find them.
func (c *chooser) emptySet() (set int, ok bool, err error) {
	for i := range c.plan.Sets {
		_, err := c.choose(i, Ask{})
		if err == nil {
			continue
		}
		if !errors.Is(err, roles.ErrExhausted) {
			return 0, false, err
		}
		if left, err := c.abandoned(i); err != nil || !left {
			return i, err == nil, err
		}
	}
	return 0, false, nil
}

// abandoned tells whether a set has an address that is held, as far as its
// reservation tells, and has no lease.
func (c *chooser) abandoned(set int) (bool, error) {
	if c.kept == nil {
		return false, nil
	}
	for r, err := range c.kept.All() {
		if err != nil || !r.Held() {
			continue
		}
		if _, ok, err := c.free(set, &r); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// isLeased tells whether one of a reservation's addresses is leased to its holder.
func isLeased(pool *store.Pool, r *store.Reservation) (bool, error) {
	var failure error
	leased := slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool {
		l, err := pool.Lease(a)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			failure = err
		}
		return err == nil && l.Owner == r.Holder
	})
	return leased, failure
}
