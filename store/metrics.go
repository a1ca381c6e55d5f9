package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store/internal/kv"
)

// WriteMetrics writes the metrics that are in the state files: attachments, leases, pools and calls.
func (s *Store) WriteMetrics(ctx context.Context, w *metrics.Writer) error {
	attachments, pools := map[string]int{}, map[string]*poolUse{}
	err := s.View(ctx, func(tx *Tx) (err error) {
		for k := range kv.WithPrefix(kv.Bucket(tx.b, bucketAttachments), nil) {
			names, _, err := kv.DecodeKey(k, 1)
			if err != nil {
				return err
			}
			attachments[names[0]]++
		}
		pools, err = tx.poolUse()
		return err
	})
	if err != nil {
		return err
	}
	f := w.Gauge("cnibox_attachments", "Recorded attachments: interfaces of containers.", "network")
	for _, network := range slices.Sorted(maps.Keys(attachments)) {
		f.Add(float64(attachments[network]), network)
	}
	writePools(w.Gauge("cnibox_leases", "Leased addresses of the network's pools on this node.", "network", "family"), pools, func(p *poolUse) [2]float64 { return p.leases })
	writePools(w.Gauge("cnibox_pool_addresses", "Addresses that the network's pools on this node have, leased and free, as of the last ADD.", "network", "family"), pools, func(p *poolUse) [2]float64 { return p.sizes })
	calls, err := s.Calls(ctx)
	sorting.Func(calls, func(a, b Calls) int {
		return cmp.Or(strings.Compare(a.Role, b.Role), strings.Compare(a.Verb, b.Verb), cmp.Compare(a.Code, b.Code))
	})
	f = w.Histogram("cnibox_cni_call_duration_seconds", "Durations of CNI calls since the boot. The code is that of the CNI error, 0 for success.", "role", "verb", "code")
	for i := range calls {
		c := &calls[i]
		f.AddHistogram(&c.Histogram, c.Role, c.Verb, strconv.Itoa(int(c.Code)))
	}
	return err
}

// poolUse are the IPv4 and IPv6 addresses of the pools of one network.
type poolUse struct{ leases, sizes [2]float64 }

// poolUse returns the use of the pools by network. It decodes no lease.
func (tx *Tx) poolUse() (map[string]*poolUse, error) {
	all := map[string]*poolUse{}
	err := tx.EachPool("", func(p *Pool) error {
		network := p.ID().Network
		if all[network] == nil {
			all[network] = &poolUse{}
		}
		use := all[network]
		for a := range p.Owners() {
			if a.Is6() {
				use.leases[1]++
			} else {
				use.leases[0]++
			}
		}
		for i, n := range p.Sizes() {
			use.sizes[i] += n
		}
		return nil
	})
	return all, err
}

// writePools writes one value of each pool and family that is in use.
func writePools(f metrics.Family, pools map[string]*poolUse, value func(*poolUse) [2]float64) {
	for _, network := range slices.Sorted(maps.Keys(pools)) {
		p := pools[network]
		for i, family := range []string{"IPv4", "IPv6"} {
			if p.leases[i]+p.sizes[i] > 0 {
				f.Add(value(p)[i], network, family)
			}
		}
	}
}
