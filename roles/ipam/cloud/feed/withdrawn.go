package feed

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/store"
)

// given is what NICs have for pods.
type given struct {
	addresses map[netip.Addr]bool
	ranges    []netip.Prefix
}

func givenBy(nics []store.CloudNIC) *given {
	g := &given{addresses: map[netip.Addr]bool{}}
	for _, n := range nics {
		for _, s := range n.Subnets {
			for _, a := range s.Addresses {
				g.addresses[a] = true
			}
			g.ranges = append(g.ranges, s.Ranges...)
			for _, a := range s.Own { // also of the ranges
				delete(g.addresses, a)
			}
		}
	}
	return g
}

func (g *given) has(a netip.Addr) bool {
	return g.addresses[a] || slices.ContainsFunc(g.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// markWithdrawn finds the leases of the source's addresses that it does not name
// now. A mark stays until the cloud names the address again, or the lease ends.
func markWithdrawn(tx *store.Tx, s *store.CloudSource, now time.Time) error {
	pools, err := tx.Pools()
	if err != nil {
		return err
	}
	names := givenBy(s.NICs)
	marks := map[netip.Addr]time.Time{}
	for _, id := range pools {
		p, err := tx.Pool(id)
		if err != nil {
			return err
		}
		for l, err := range p.Leases() {
			// What cannot be read is for its own role to report.
			if err != nil || l.Source != s.Name || names.has(l.Address) {
				continue
			}
			if since, ok := s.Withdrawn[l.Address]; ok {
				marks[l.Address] = since
			} else {
				marks[l.Address] = now
			}
		}
	}
	if s.Withdrawn = marks; len(marks) == 0 {
		s.Withdrawn = nil
	}
	return nil
}
