package ranges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// Addresses move from whereabouts to cnibox in three steps: Import makes whereabouts refuse ADD, and writes blocks with
// the containers into pages; the keeper of each node makes leases for these containers. On the way back the keepers
// write the containers into their blocks, and Export gives them to whereabouts. In between no block is used.

// foreignRanges are the ranges of which another program gives addresses.
type foreignRanges []cluster.ForeignRange

// overlap returns the first range with an address of an interval, or nil.
func (f foreignRanges) overlap(i leasing.Interval) *cluster.ForeignRange {
	for j := range f {
		if f[j].Range.IsValid() && leasing.Whole(f[j].Range).Overlaps(i) {
			return &f[j]
		}
	}
	return nil
}

// err returns an error for the first range that is not being returned, or nil.
func (f foreignRanges) err() error {
	for i := range f {
		if f[i].Range.IsValid() && !f[i].Returning {
			return foreignError(&f[i])
		}
	}
	return nil
}

// faults names the objects of other programs that cannot be read.
func (f foreignRanges) faults() error {
	var all []error
	for i := range f {
		if !f[i].Range.IsValid() {
			all = append(all, f[i].Fault)
		}
	}
	return errors.Join(all...)
}

var errReturning = errors.New("it is being returned: 'cnibox migrate whereabouts --back' replaces the plugin on this node")

func foreignError(r *cluster.ForeignRange) error {
	if r.Returning {
		return fmt.Errorf("%s: %w", r.Name, errReturning)
	}
	if r.Fault != nil {
		return fmt.Errorf("%w: by its name it may give addresses of %s", r.Fault, r.Range)
	}
	return fmt.Errorf("%s gives addresses of %s: take it over with 'cnibox migrate whereabouts --kubeconfig-file FILE', or delete it if whereabouts is not used any more", r.Name, r.Range)
}

// readForeign reads the ranges of other programs. After an error no new block is used before it succeeds.
func (k *Keeper) readForeign(ctx context.Context) error {
	all, err := k.Registry.ForeignRanges(ctx)
	if err != nil {
		k.listed = false
		for name := range k.pages {
			k.unsure[name] = true
		}
		return err
	}
	k.foreign = all
	return nil
}

// refuseForeign returns an error if another program gives addresses of intervals.
func (k *Keeper) refuseForeign(ctx context.Context, of []leasing.Interval) error {
	if err := k.readForeign(ctx); err != nil {
		return err
	}
	for _, i := range of {
		if r := k.foreign.overlap(i); r != nil {
			return foreignError(r)
		}
	}
	return nil
}

// adopt makes leases for the containers of blocks that whereabouts had, and then takes the blocks.
func (k *Keeper) adopt(ctx context.Context) error {
	var caches map[string][]*recovery.CacheEntry
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(k.pages)) {
		p, ready := k.pages[name], map[netip.Addr][]container{}
		for i := range p.Blocks {
			b := &p.Blocks[i]
			if !k.moves(b) || k.foreign.overlap(b.interval()) != nil {
				continue
			}
			if caches == nil {
				caches = k.caches()
			}
			leases, ok := k.leasesOf(b, caches)
			if !ok {
				continue
			}
			if err := k.reserve(ctx, p.Pool, leases); err != nil {
				faults = append(faults, err)
				continue
			}
			ready[b.First] = b.Holders
		}
		if len(ready) == 0 {
			continue
		}
		faults = append(faults, k.change(ctx, name, func(p *page) (changed bool) {
			for i := range p.Blocks {
				b := &p.Blocks[i]
				holders, is := ready[b.First]
				if is && k.moves(b) && slices.Equal(holders, b.Holders) {
					b.Machine, b.Claim, b.Holders, changed = k.Machine, "", nil, true
				}
			}
			return changed
		}), k.readForeign(ctx)) // the range may be returned meanwhile
	}
	return errors.Join(faults...)
}

// multusCache has the cached results of networks that Multus attached.
const multusCache = "/var/lib/cni/multus/results"

// caches returns the runtimes' cached results by container.
func (k *Keeper) caches() map[string][]*recovery.CacheEntry {
	out := map[string][]*recovery.CacheEntry{}
	for _, c := range recovery.ReadCaches(k.Host, append(recovery.CacheDirs(k.Host.Store.RunDir()), multusCache)) {
		out[c.ContainerID] = append(out[c.ContainerID], c)
	}
	return out
}

// leasesOf returns leases for the containers of a block. The runtimes' caches have their networks and namespaces. A
// container that the caches lack is being attached, or has ended: it has ended if they lack it for the grace period.
// ok is false until then. Without any cache nothing is known.
func (k *Keeper) leasesOf(b *block, caches map[string][]*recovery.CacheEntry) (leases []store.Lease, ok bool) {
	ok = true
	for _, h := range b.Holders {
		l := store.Lease{Address: h.Address, Pod: h.Pod, Time: k.Host.Now()}
		for _, c := range caches[h.ContainerID] {
			set := slices.IndexFunc(c.Addresses(), func(p netip.Prefix) bool { return p.Addr() == h.Address })
			if set >= 0 {
				l.Owner, l.Set, l.Netns = c.Key(), set, leasing.NodeLiveness().Netns(c.Netns)
			}
		}
		switch since, known := k.absent[h.Address]; {
		case l.Owner.ContainerID != "":
			leases = append(leases, l)
		case len(caches) == 0 || !known:
			k.absent[h.Address], ok = k.clock(), false
			k.log.Warn("no cache of a runtime has the container of an address of whereabouts", "address", h.Address, "container", h.ContainerID, "pod", h.Pod)
		case k.clock().Sub(since) < k.Grace:
			ok = false
		}
	}
	for i := range b.Holders {
		if ok {
			delete(k.absent, b.Holders[i].Address)
		}
	}
	return leases, ok
}

// reserve stores leases. An address that another container has according to node.db was released by whereabouts. A lease
// that was rebuilt from a cache gets its pod.
func (k *Keeper) reserve(ctx context.Context, pool string, leases []store.Lease) error {
	return k.Host.Store.Update(ctx, func(tx *store.Tx) error {
		for _, l := range leases {
			p, err := tx.Pool(store.PoolID{DataDir: store.RangeDir(pool), Network: l.Owner.Network})
			if err != nil {
				return err
			}
			held, err := p.Lease(l.Address)
			if err == nil && held.Owner == l.Owner && held.Pod != "" {
				continue
			}
			if err == nil {
				err = p.Release(l.Address)
			}
			if err == nil || errors.Is(err, store.ErrNotFound) {
				err = p.Reserve(l)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// handOver writes the containers of blocks that whereabouts gets again into the blocks. Before, publish has removed the
// blocks from node.db, so that no ADD uses them. The leases stay until the containers end.
func (k *Keeper) handOver(ctx context.Context) error {
	returns := func(b *block) bool {
		r := k.foreign.overlap(b.interval())
		return k.own(b) && r != nil && r.Returning
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(k.pages)) {
		if !slices.ContainsFunc(k.pages[name].Blocks, func(b block) bool { return returns(&b) }) {
			continue
		}
		all, err := k.holders(ctx, k.pages[name].Pool)
		if err == nil {
			err = k.deviceError(ctx, k.pages[name].page, returns)
		}
		if err == nil {
			err = k.change(ctx, name, func(p *page) (changed bool) {
				for i := range p.Blocks {
					b := &p.Blocks[i]
					if !returns(b) {
						continue
					}
					b.Machine, b.Claim, b.Holders, changed = "", "", nil, true
					for _, h := range all {
						if b.interval().Contains(h.Address) {
							b.Holders = append(b.Holders, h)
						}
					}
				}
				return changed
			})
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// deviceError returns an error if a device has an address of the blocks of a page that are returned. Whereabouts knows no owner that is
// not a pod, and would give the address to another one.
func (k *Keeper) deviceError(ctx context.Context, p *page, returned func(*block) bool) error {
	var faults []error
	err := k.Host.Store.View(ctx, func(tx *store.Tx) error {
		faults = nil
		return eachLease(tx, func(id store.PoolID, l *store.Lease) {
			network, ok := DeviceNetwork(l.Owner)
			of := func(b block) bool { return returned(&b) && b.interval().Contains(l.Address) }
			if ok && id.DataDir == store.RangeDir(p.Pool) && slices.ContainsFunc(p.Blocks, of) {
				faults = append(faults, fmt.Errorf("the range of network %q returns to whereabouts, and device %q of ResourceClaim %s has its address %s: delete the pod that uses it",
					network, l.Owner.IfName, l.Owner.ContainerID, l.Address))
			}
		})
	})
	return errors.Join(append(faults, err)...)
}

// holders returns the containers that have addresses of a pool.
func (k *Keeper) holders(ctx context.Context, pool string) (out []container, err error) {
	err = k.Host.Store.View(ctx, func(tx *store.Tx) error {
		out = nil
		return eachLease(tx, func(id store.PoolID, l *store.Lease) {
			if id.DataDir == store.RangeDir(pool) || recovery.IsPoolUnknown(id) {
				out = append(out, container{l.Address, l.Owner.ContainerID, l.Owner.IfName, l.Pod})
			}
		})
	})
	return out, err
}
