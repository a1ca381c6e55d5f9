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

// origin is the reason why an address was chosen.
type origin int

// The origins of addresses, in the order of preference.
const (
	requested  origin = iota
	kept              // kept for the identity
	unused            // never leased according to the store
	longest           // free for the longest time; its last identity is unknown
	expired           // last leased to another identity, long ago
	cooling           // recently released by another identity; no better address was left
	reassigned        // kept for another identity; no better address was left
)

// Grant is an address of one set.
type Grant struct {
	addr   netip.Addr
	in     *Range
	origin origin
	// of is the identity that had the address. It is set for the origins from kept on.
	of string
}

// Address returns the address.
func (g Grant) Address() netip.Addr { return g.addr }

// NIC returns the NIC of the address's Range.
func (g Grant) NIC() string { return g.in.NIC }

// chooser finds addresses for one attachment. It changes nothing.
type chooser struct {
	plan *Plan
	pool *store.Pool
	// freed is nil without Plan.Reuse.
	freed *store.Freed
	// others are the pools of other networks with the same addresses.
	others []*store.Pool
	// kept is nil without Plan.Sticky.
	kept *store.StickyPool
	// untouched are the functions that return the lowest address from one to another that has no lease,
	// no reservation and no release, each according to one record.
	untouched []func(from, to netip.Addr) (netip.Addr, bool, error)
	now       time.Time
	// own is the identity's reservation; nil if there is none, or if one of its addresses
	// cannot be used.
	own *store.Reservation
	// last permits addresses that are kept for other identities, because no other address
	// is left.
	last bool
	// lenient means that a request for a taken address is ignored.
	lenient bool
	// avoid are addresses that have files of other programs.
	avoid []netip.Addr
	// err is the first error of a search, which then has no result.
	err error
}

// choose finds an address of one set. It tries, in this order: the requested address; the
// address that is kept for the identity; an address without a known earlier owner, round
// robin or by preference; the address that has been free for the longest time; a cooling
// address; an address that is kept for another identity.
func (c *chooser) choose(set int, req AddressRequest) (Grant, error) {
	if req.addr.IsValid() {
		g, err := c.requested(set, req)
		if err == nil || !c.lenient || !errors.Is(err, store.ErrTaken) {
			return g, err
		}
	}
	searches := []func(int) Grant{c.ownGrant, c.unused, c.expired}
	if c.plan.Reuse != nil {
		searches[1] = c.preferred
	}
	if c.last {
		searches = append(searches, c.coolingLast, c.keptLast)
	}
	for _, search := range searches {
		if g := search(set); g.in != nil || c.err != nil {
			return g, c.err
		}
	}
	return Grant{}, c.plan.exhausted(set)
}

func (c *chooser) requested(set int, req AddressRequest) (Grant, error) {
	g := Grant{addr: req.addr, in: c.plan.Sets[set].RangeOf(req.addr), origin: requested}
	if !g.in.Allows(req.addr) {
		return Grant{}, fmt.Errorf("%s: address %s: %w: it is not in a block of this node", req.path, req.addr, store.ErrTaken)
	}
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
	isOwn := c.own != nil && c.own.Identity == r.Identity
	mayBeTaken := !r.Pinned && !c.plan.Sticky.Strict
	if isOwn || mayBeTaken || !r.Reserves(c.now) {
		return g, nil
	}
	return Grant{}, fmt.Errorf("%s: address %s: %w: kept for %q %s", req.path, req.addr, store.ErrTaken, r.Identity, until(r))
}

// ignoring returns nil if err is target, else err.
func ignoring(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// until returns the end of a reservation as a text for a message.
func until(r *store.Reservation) string {
	if r.Held() {
		return fmt.Sprintf("while container %.64q has it", r.Holder.ContainerID)
	}
	if t, ok := r.Expires(); ok {
		return "until " + t.Format(time.RFC3339)
	}
	return "for ever"
}

// A search returns a Grant without a range if it finds no address, or sets err.

// fail stops the search.
func (c *chooser) fail(err error) Grant {
	c.err = err
	return Grant{}
}

// ownGrant returns the address of a set that is kept for the identity.
func (c *chooser) ownGrant(set int) Grant {
	if c.own == nil {
		return Grant{}
	}
	for _, a := range c.own.Addresses {
		if r := c.plan.Sets[set].RangeOf(a); r != nil {
			return Grant{addr: a, in: r, origin: kept, of: c.own.Identity}
		}
	}
	return Grant{}
}

// unused returns the next address that has neither a lease nor a reservation.
func (c *chooser) unused(set int) Grant {
	last, _, err := c.pool.Cursor(set)
	if err != nil {
		return c.fail(err)
	}
	for _, part := range c.plan.Sets[set].order(last) {
		if a := c.next(part.Lo, part.Hi); a.IsValid() || c.err != nil {
			return Grant{addr: a, in: part.in, origin: unused}
		}
	}
	return Grant{}
}

// next returns the lowest address from lo to hi that has neither a lease nor a
// reservation and is not known to have been leased. It returns an invalid one if there is none.
func (c *chooser) next(lo, hi netip.Addr) netip.Addr {
	a, agree := lo, 0
	for i := 0; agree < len(c.untouched); i = (i + 1) % len(c.untouched) {
		found, ok, err := c.untouched[i](a, hi)
		if err != nil || !ok {
			c.err = err
			return netip.Addr{}
		}
		if found != a {
			a, agree = found, 0
		}
		agree++
	}
	return a
}

// nextUnavoided returns the lowest address from lo to hi that is not avoided.
func (c *chooser) nextUnavoided(lo, hi netip.Addr) (a netip.Addr, ok bool, err error) {
	a = lo
	for slices.Contains(c.avoid, a) {
		a = a.Next()
	}
	return a, a.IsValid() && a.Compare(hi) <= 0, nil
}

func (c *chooser) expired(set int) Grant { return c.waiting(set, store.Expired, expired) }

func (c *chooser) coolingLast(set int) Grant { return c.waiting(set, store.Cooling, cooling) }

func (c *chooser) keptLast(set int) Grant { return c.waiting(set, store.Kept, reassigned) }

// waiting returns an unleased address of the reservations in a stage. It prefers the
// reservation that ends first.
func (c *chooser) waiting(set int, stage store.Stage, why origin) Grant {
	if c.kept == nil {
		return Grant{}
	}
	for w, err := range c.kept.Waiting() {
		if err != nil {
			return c.fail(err)
		}
		at := w.Stage(c.now)
		if stage == store.Expired && at != stage {
			break // the following reservations end later
		}
		if isPinned := w.Pinned && stage == store.Kept; isPinned || at != stage {
			continue
		}
		r, err := c.kept.Reservation(w.Identity)
		if err != nil {
			return c.fail(err)
		}
		if g := c.free(set, r); g.in != nil || c.err != nil {
			g.origin = why
			return g
		}
	}
	return Grant{}
}

// free returns a reservation's address in a set, if there is one without a lease.
func (c *chooser) free(set int, r *store.Reservation) Grant {
	for _, a := range r.Addresses {
		in := c.plan.Sets[set].RangeOf(a)
		if in != nil && in.Allows(a) && c.isFree(a) {
			return Grant{addr: a, in: in, of: r.Identity}
		}
	}
	return Grant{}
}

// heldError means that another attachment uses an identity's addresses.
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

// find looks for the identity's own reservation. A pod gets all of its addresses or none,
// so all of them that are in the configuration's ranges must be free. If another
// attachment uses one, the error is a heldError.
func (c *chooser) find(identity string, owner store.Key) error {
	r, err := c.kept.Reservation(identity)
	if err != nil || r.Broken {
		return ignoring(err, store.ErrNotFound)
	}
	usable := 0
	for _, a := range r.Addresses {
		in := c.plan.rangeOf(a)
		if in == nil {
			continue // its range was removed
		}
		l, err := c.lease(a)
		switch {
		case err == nil && l.Owner == r.Holder && l.Owner != owner:
			return &heldError{identity: identity, holder: l.Owner, netns: l.Netns, addrs: r.Addresses}
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
func (c *chooser) chooseAll(bySet []AddressRequest) ([]Grant, error) {
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

// emptySet returns the first set without a free address. Addresses of dead attachments
// count as free, because ADD would release them.
func (c *chooser) emptySet() (set int, ok bool, err error) {
	for i := range c.plan.Sets {
		_, err := c.choose(i, AddressRequest{})
		if err == nil {
			continue
		}
		if !errors.Is(err, roles.ErrExhausted) {
			return 0, false, err
		}
		if !c.hasAbandoned(i) {
			return i, c.err == nil, c.err
		}
	}
	return 0, false, nil
}

// hasAbandoned reports whether a set has an address that is held according to its
// reservation but has no lease.
func (c *chooser) hasAbandoned(set int) bool {
	if c.kept == nil {
		return false
	}
	for r, err := range c.kept.All() {
		if err != nil || !r.Held() {
			continue
		}
		if g := c.free(set, &r); g.in != nil || c.err != nil {
			return g.in != nil
		}
	}
	return false
}

// isLeased reports whether one of a reservation's addresses is leased to its holder.
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
