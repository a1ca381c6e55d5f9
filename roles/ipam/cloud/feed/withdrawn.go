package feed

import (
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store"
)

// hasAddress reports whether a source has an address for pods.
func hasAddress(s *store.CloudSource, a netip.Addr) bool {
	for i := range s.NICs {
		for j := range s.NICs[i].Subnets {
			if s.NICs[i].Subnets[j].Gives(a) {
				return true
			}
		}
	}
	return false
}

// markWithdrawn marks the leases of the source's addresses that the source no longer has. A mark
// stays until the source has the address again or the lease ends.
func markWithdrawn(tx *store.Tx, s *store.CloudSource, now time.Time) error {
	marks := map[netip.Addr]time.Time{}
	err := tx.EachPool("", func(p *store.Pool) error {
		for l, err := range p.Leases() {
			// A damaged lease is reported when the pool is used.
			if err != nil || l.Source != s.Name || hasAddress(s, l.Address) {
				continue
			}
			if since, ok := s.Withdrawn[l.Address]; ok {
				marks[l.Address] = since
			} else {
				marks[l.Address] = now
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Withdrawn = marks
	if len(marks) == 0 {
		s.Withdrawn = nil
	}
	return nil
}
