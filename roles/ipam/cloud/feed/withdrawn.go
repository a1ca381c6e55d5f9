package feed

import (
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store"
)

// names tells whether a source has an address for pods.
func names(s *store.CloudSource, a netip.Addr) bool {
	for i := range s.NICs {
		for j := range s.NICs[i].Subnets {
			if s.NICs[i].Subnets[j].Gives(a) {
				return true
			}
		}
	}
	return false
}

// markWithdrawn finds the leases of the source's addresses that it does not name
// now. A mark stays until the cloud names the address again, or the lease ends.
func markWithdrawn(tx *store.Tx, s *store.CloudSource, now time.Time) error {
	pools, err := tx.Pools()
	if err != nil {
		return err
	}
	marks := map[netip.Addr]time.Time{}
	for _, id := range pools {
		p, err := tx.Pool(id)
		if err != nil {
			return err
		}
		for l, err := range p.Leases() {
			// What cannot be read is for its own role to report.
			if err != nil || l.Source != s.Name || names(s, l.Address) {
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
