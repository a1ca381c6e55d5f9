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

// exhaustedError tells that a set has nothing left. It is an ErrExhausted.
type exhaustedError struct{ set int }

func (e *exhaustedError) Error() string {
	return fmt.Sprintf("range set %d: %v", e.set, roles.ErrExhausted)
}

func (e *exhaustedError) Is(target error) bool { return target == roles.ErrExhausted }

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
	return req.fault("%s", outside(sets, req.addr))
}

// outside tells why an address is in no range.
func outside(sets []rangeSet, a netip.Addr) string {
	for _, s := range sets {
		for _, r := range s {
			switch all := whole(r.subnet); {
			case !all.contains(a):
				continue
			case a.Is4() && !hostsOf(r.subnet).contains(a) && a == all.lo:
				return "is in no range: it is the network address of " + r.subnet.String()
			case a.Is4() && !hostsOf(r.subnet).contains(a):
				return "is in no range: it is the broadcast address of " + r.subnet.String()
			}
			return fmt.Sprintf("is in no range: of %s it is only %s", r.subnet, r.bounds)
		}
	}
	return "is in no range"
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
