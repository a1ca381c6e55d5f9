package cloud

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// inventory has the cloud's addresses and their owners, read in one transaction.
type inventory struct {
	now      time.Time
	cooldown time.Duration
	sources  []store.CloudSource
	// leases are the leases of cloud addresses.
	leases      map[netip.Addr]store.Lease
	attachments map[store.Key]*store.Attachment
	// freed has the time of the last release of an address.
	freed  map[netip.Addr]time.Time
	links  []netops.LinkInfo
	nics   map[string]netops.LinkInfo // by MAC address
	census *attachment.Census
}

func takeInventory(ctx context.Context, h *roles.Host, cooldown time.Duration) (*inventory, error) {
	v := &inventory{
		now: h.Now(), cooldown: cooldown, leases: map[netip.Addr]store.Lease{},
		attachments: map[store.Key]*store.Attachment{}, freed: map[netip.Addr]time.Time{},
	}
	if err := h.Store.View(ctx, v.read); err != nil {
		return nil, err
	}
	var err error
	v.links, err = h.Net.Links(ctx, nil)
	if err == nil {
		v.nics = attachment.NICs(v.links)
		v.census, err = attachment.NewCensus(ctx, h)
	}
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	return v, nil
}

func (v *inventory) read(tx *store.Tx) error {
	var err error
	v.sources, err = tx.CloudSources()
	if err != nil {
		return err
	}
	if err := tx.EachPool("", func(p *store.Pool) error { return v.readPool(tx, p) }); err != nil {
		return err
	}
	all, err := tx.Attachments("")
	for i := range all {
		v.attachments[all[i].Key] = &all[i]
	}
	return err
}

func (v *inventory) readPool(tx *store.Tx, pool *store.Pool) error {
	for l, err := range pool.Leases() {
		if err != nil {
			return err
		}
		if l.Source != "" {
			v.leases[l.Address] = l
		}
	}
	freed, err := tx.Freed(pool.ID())
	if err != nil {
		return err
	}
	for f, err := range freed.Oldest() {
		if err != nil {
			return err
		}
		if f.Released.After(v.freed[f.Address]) {
			v.freed[f.Address] = f.Released
		}
	}
	return nil
}

// isDead reports whether the owner of a lease certainly no longer exists.
func (v *inventory) isDead(l store.Lease) bool {
	if a := v.attachments[l.Owner]; a != nil {
		return v.census.Dead(a)
	}
	return !l.Imported && v.census.NetnsGone(l.Netns)
}

// hostHas returns the link that has the address, or "".
func (v *inventory) hostHas(a netip.Addr) string {
	for _, l := range v.links {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return l.Name
		}
	}
	return ""
}

// stateOf returns the state of a leased address.
func (v *inventory) stateOf(s *store.CloudSource, l store.Lease) string {
	if v.isDead(l) {
		return stateLeaked
	}
	if _, ok := s.Withdrawn[l.Address]; ok {
		return stateWithdrawn
	}
	return stateUsed
}

// shown returns the inventory for output. If addresses are given it has only these.
func (v *inventory) shown(of []string) *Shown {
	out := &Shown{Sources: []ShownSource{}, Addresses: []ShownAddress{}, Differences: v.differences(), now: v.now}
	for i := range v.sources {
		out.Sources = append(out.Sources, v.source(&v.sources[i]))
	}
	for a, l := range v.leases {
		out.Addresses = append(out.Addresses, v.leased(a, l))
	}
	for i := range v.sources {
		s := &v.sources[i]
		for a, released := range v.freed {
			nic, subnet, ok := locate(s, a)
			if _, taken := v.leases[a]; !ok || taken || !v.cools(a) {
				continue
			}
			out.Addresses = append(out.Addresses, ShownAddress{
				Address: a, Source: s.Name, NIC: nic.MAC, Subnet: subnet.Prefix, State: stateCooling, Since: released, Until: released.Add(v.cooldown),
			})
		}
	}
	out.Addresses = slices.DeleteFunc(out.Addresses, func(a ShownAddress) bool {
		return len(of) > 0 && !slices.Contains(of, a.Address.String())
	})
	sorting.Func(out.Addresses, func(a, b ShownAddress) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Source, b.Source))
	})
	return out
}

func (v *inventory) cools(a netip.Addr) bool { return v.freed[a].Add(v.cooldown).After(v.now) }

// leased returns a leased address for output.
func (v *inventory) leased(a netip.Addr, l store.Lease) ShownAddress {
	one := ShownAddress{
		Address: a, Source: l.Source, NIC: l.NIC, State: stateUsed, Network: l.Owner.Network, Pod: l.Pod,
		ContainerID: l.Owner.ContainerID, IfName: l.Owner.IfName, Netns: l.Netns.Path, Since: l.Time,
	}
	if s := v.sourceOf(l); s != nil {
		one.State = v.stateOf(s, l)
		one.Withdrawn = s.Withdrawn[a]
		if _, subnet, ok := locate(s, a); ok {
			one.Subnet = subnet.Prefix
		}
	} else if v.isDead(l) {
		one.State = stateLeaked
	}
	return one
}

func (v *inventory) sourceOf(l store.Lease) *store.CloudSource {
	for i := range v.sources {
		if v.sources[i].Name == l.Source {
			return &v.sources[i]
		}
	}
	return nil
}

// locate returns the NIC and subnet in which a source has an address for pods.
func locate(s *store.CloudSource, a netip.Addr) (*store.CloudNIC, *store.CloudSubnet, bool) {
	for i := range s.NICs {
		for j := range s.NICs[i].Subnets {
			sub := &s.NICs[i].Subnets[j]
			if sub.Gives(a) {
				return &s.NICs[i], sub, true
			}
		}
	}
	return nil, nil, false
}
