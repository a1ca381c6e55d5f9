package leasing

import (
	"fmt"
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
