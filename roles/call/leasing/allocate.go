package leasing

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

// shownHolders is the number of oldest leases in the error of an exhausted pool.
const shownHolders = 3

// exhaustedError is the ErrExhausted of one set.
type exhaustedError struct {
	set  int
	name string
}

func (e *exhaustedError) Error() string { return fmt.Sprintf("%s: %v", e.name, roles.ErrExhausted) }

func (e *exhaustedError) Is(target error) bool { return target == roles.ErrExhausted }

func (p *Plan) exhausted(set int) error { return &exhaustedError{set, p.setName(set)} }

// assign returns one request for each set, or the zero request. If no set can serve a
// request, the error names the request.
func (p *Plan) assign(requests []AddressRequest) ([]AddressRequest, error) {
	bySet := make([]AddressRequest, len(p.Sets))
	var errs []error
	for i, req := range requests {
		if slices.ContainsFunc(requests[:i], func(o AddressRequest) bool { return o.addr == req.addr }) {
			continue
		}
		if err := p.assignOne(bySet, req); err != nil {
			errs = append(errs, err)
		}
	}
	return bySet, errors.Join(errs...)
}

func (p *Plan) assignOne(bySet []AddressRequest, req AddressRequest) error {
	for i, s := range p.Sets {
		r := s.RangeOf(req.addr)
		switch {
		case r == nil:
			continue
		case bySet[i].addr.IsValid():
			return req.fault("cannot be served: %s gives one address, and %s is requested of it already", p.setName(i), bySet[i].addr)
		case req.addr == r.Gateway:
			return req.fault("is the gateway of %s", r.Subnet)
		case !r.Allows(req.addr):
			return req.fault("%s %s", p.refusal(), r.Subnet)
		}
		bySet[i] = req
		return nil
	}
	return req.fault("%s", outside(p.Sets, req.addr))
}

// refusal returns the reason why a range does not allow an address.
func (p *Plan) refusal() string {
	if p.Reuse == nil || p.Within != nil {
		return "is excluded from"
	}
	return "is not an address that the cloud gives this node for pods, of"
}

// outside returns the error text for an address outside of all ranges.
func outside(sets []Set, a netip.Addr) string {
	for _, s := range sets {
		for _, r := range s {
			switch all := Whole(r.Subnet); {
			case !all.Contains(a):
				continue
			case a.Is4() && !Hosts(r.Subnet).Contains(a) && a == all.Lo:
				return "is in no range: it is the network address of " + r.Subnet.String()
			case a.Is4() && !Hosts(r.Subnet).Contains(a):
				return "is in no range: it is the broadcast address of " + r.Subnet.String()
			}
			return fmt.Sprintf("is in no range: %s has only %s", r.Subnet, r.Bounds)
		}
	}
	return "is in no range"
}

// describe returns the size of an exhausted set, the number of used addresses, and the
// oldest leases, as a text for an error.
func (p *Plan) describe(c *chooser, set int) (string, error) {
	s := p.Sets[set]
	used := 0
	var oldest []store.Lease
	for _, pool := range append([]*store.Pool{c.pool}, c.others...) {
		for l, err := range pool.Leases() {
			if err != nil {
				return "", err
			}
			r := s.RangeOf(l.Address)
			if r == nil || !r.Allows(l.Address) {
				continue
			}
			used++
			oldest = insertOldest(oldest, l)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s addresses, %d used", p.setName(set), s.Size(), used)
	for i, l := range oldest {
		sep := "; "
		if i == 0 {
			sep = "; held longest: "
		}
		fmt.Fprintf(&b, "%s%s by %.12q %.16q since %s", sep, l.Address, l.Owner.ContainerID, l.Owner.IfName, l.Time.UTC().Format(time.RFC3339))
	}
	return b.String(), nil
}

// insertOldest adds a lease to the oldest ones, which are sorted and limited in
// number.
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
