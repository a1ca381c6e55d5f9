package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// shownHolders is how many of the oldest leases an exhausted pool names.
const shownHolders = 3

// errRepeated never leaves this package: the attachment has leases already.
var errRepeated = errors.New("has addresses already")

// exhaustedError tells that a set has nothing left. It is an ErrExhausted.
type exhaustedError struct{ set int }

func (e *exhaustedError) Error() string {
	return fmt.Sprintf("range set %d: %v", e.set, roles.ErrExhausted)
}

func (e *exhaustedError) Is(target error) bool { return target == roles.ErrExhausted }

// grant is an address of one set.
type grant struct {
	addr netip.Addr
	in   *addrRange
}

// assign gives each set the request that is for it; the zero request where
// there is none. A request that no set can serve is an error that names it.
func assign(sets []rangeSet, requests []request) ([]request, error) {
	bySet := make([]request, len(sets))
	var errs []error
	for i, req := range requests {
		if slices.ContainsFunc(requests[:i], func(o request) bool { return o.addr == req.addr }) {
			continue
		}
		if err := assignOne(sets, bySet, req); err != nil {
			errs = append(errs, err)
		}
	}
	return bySet, errors.Join(errs...)
}

func assignOne(sets []rangeSet, bySet []request, req request) error {
	for i, s := range sets {
		r := s.rangeOf(req.addr)
		switch {
		case r == nil:
			continue
		case bySet[i].addr.IsValid():
			return req.fault("cannot be served: range set %d (%s) gives one address, and %s is requested of it already", i, s, bySet[i].addr)
		case req.addr == r.gateway:
			return req.fault("is the gateway of %s", r.subnet)
		case !r.allows(req.addr):
			return req.fault("is excluded from %s", r.subnet)
		}
		bySet[i] = req
		return nil
	}
	return req.fault("is in no range")
}

// choose finds an address of one set: the requested one if it is free, else the
// next one that is free. It reserves nothing.
func (p *plan) choose(pool *store.Pool, set int, req request) (grant, error) {
	s := p.sets[set]
	if req.addr.IsValid() {
		return chooseRequested(pool, s, req)
	}
	last, _, err := pool.Cursor(set)
	if err != nil {
		return grant{}, err
	}
	for _, c := range s.order(last) {
		a, ok, err := pool.Next(c.lo, c.hi)
		if err != nil {
			return grant{}, err
		}
		if ok {
			return grant{a, c.in}, nil
		}
	}
	return grant{}, &exhaustedError{set}
}

func chooseRequested(pool *store.Pool, s rangeSet, req request) (grant, error) {
	l, err := pool.Lease(req.addr)
	if err == nil {
		return grant{}, fmt.Errorf("%s: %w", req.path, &store.TakenError{What: "address " + req.addr.String(), Owner: l.Owner})
	}
	if !errors.Is(err, store.ErrNotFound) {
		return grant{}, err
	}
	return grant{req.addr, s.rangeOf(req.addr)}, nil
}

// reserve takes an address of every set, or, with an error, none: then the
// caller's transaction must not be committed.
func (p *plan) reserve(pool *store.Pool, lease store.Lease, bySet []request) ([]grant, error) {
	owned, err := pool.Owned(lease.Owner)
	if err != nil {
		return nil, err
	}
	if len(owned) > 0 {
		return nil, errRepeated
	}
	var out []grant
	for i, req := range bySet {
		g, err := p.choose(pool, i, req)
		if err != nil {
			return nil, err
		}
		lease.Address, lease.Set = g.addr, i
		if err := pool.Reserve(lease); err != nil {
			return nil, err
		}
		if err := pool.SetCursor(i, g.addr); err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// preview is reserve without reserving.
func (p *plan) preview(pool *store.Pool, bySet []request) ([]grant, error) {
	var out []grant
	for i, req := range bySet {
		g, err := p.choose(pool, i, req)
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// emptySet returns the first set without a free address; ok is false when all
// have one.
func (p *plan) emptySet(pool *store.Pool) (set int, ok bool, err error) {
	for i := range p.sets {
		_, err := p.choose(pool, i, request{})
		if errors.Is(err, roles.ErrExhausted) {
			return i, true, nil
		}
		if err != nil {
			return 0, false, err
		}
	}
	return 0, false, nil
}

// describe tells of an exhausted set its size, how much of it is used and who
// holds addresses for the longest time.
func (p *plan) describe(pool *store.Pool, set int) (string, error) {
	s := p.sets[set]
	used := 0
	var oldest []store.Lease
	for l, err := range pool.Leases() {
		if err != nil {
			return "", err
		}
		r := s.rangeOf(l.Address)
		if r == nil || !r.allows(l.Address) {
			continue
		}
		used++
		oldest = insertOldest(oldest, l)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "range set %d (%s): %s addresses, %d used", set, s, s.size(), used)
	for i, l := range oldest {
		sep := "; "
		if i == 0 {
			sep = "; held longest: "
		}
		fmt.Fprintf(&b, "%s%s by %.64q %.16q since %s", sep, l.Address, l.Owner.ContainerID, l.Owner.IfName, l.Time.UTC().Format(time.RFC3339))
	}
	return b.String(), nil
}

// insertOldest keeps the oldest leases seen, oldest first.
func insertOldest(oldest []store.Lease, l store.Lease) []store.Lease {
	at, _ := slices.BinarySearchFunc(oldest, l.Time, func(o store.Lease, t time.Time) int {
		if o.Time.After(t) {
			return 1
		}
		return -1
	})
	if at == shownHolders {
		return oldest
	}
	oldest = slices.Insert(oldest, at, l)
	return oldest[:min(len(oldest), shownHolders)]
}
