package ranges

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// probes is the number of pages that are read one by one before all are listed.
const probes = 8

// local is the content of node.db that concerns ranges.
type local struct {
	demands []store.RangeDemand
	// damaged names the records that are not demands any more. The network's next ADD without an address replaces its own.
	damaged error
	// leased has the addresses in use by the data directory of their pools, and unknown those of unknown pools.
	leased  map[string][]netip.Addr
	unknown []netip.Addr
}

// inUse returns the addresses of a pool that are, or may be, in use.
func (l *local) inUse(pool string) []netip.Addr {
	return slices.Concat(l.leased[store.RangeDir(pool)], l.unknown)
}

// read reads node.db. It deletes demands of networks that have had no address for long.
func (k *Keeper) read(ctx context.Context) (*local, error) {
	var out *local
	var old []store.RangeDemand
	err := k.Host.Store.View(ctx, func(tx *store.Tx) error {
		out, old = &local{leased: map[string][]netip.Addr{}}, nil
		networks := map[string]bool{}
		err := eachLease(tx, func(id store.PoolID, l *store.Lease) {
			networks[l.Owner.Network] = true
			if recovery.IsPoolUnknown(id) {
				out.unknown = append(out.unknown, l.Address)
			} else {
				out.leased[id.DataDir] = append(out.leased[id.DataDir], l.Address)
			}
		})
		if err != nil {
			return err
		}
		demands, err := tx.RangeDemands()
		if errors.Is(err, store.ErrDamaged) {
			out.damaged, err = err, nil
		}
		for _, d := range demands {
			if networks[d.Network] || k.Host.Now().Sub(d.Time) < demandTime {
				out.demands = append(out.demands, d)
			} else {
				old = append(old, d)
			}
		}
		return err
	})
	if err != nil || len(old) == 0 {
		return out, err
	}
	return out, k.Host.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range old {
			if err := tx.DeleteRangeDemand(&old[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// intervals returns the addresses of a demand.
func intervals(d *store.RangeDemand) (out []leasing.Interval) {
	for _, f := range d.Free {
		out = append(out, leasing.Interval{Lo: f[0], Hi: f[1]})
	}
	return out
}

// usage returns the numbers of used and of free addresses of a demand in this node's blocks, without the block
// except.
func (k *Keeper) usage(l *local, d *store.RangeDemand, except blockKey) (used, free int) {
	of := intervals(d)
	var here []leasing.Interval
	for _, p := range k.pages {
		for i := range p.Blocks {
			if b := &p.Blocks[i]; p.Pool == d.Pool && k.own(b) && (blockKey{p.Pool, b.First}) != except {
				here = append(here, leasing.Within(of, b.interval())...)
			}
		}
	}
	for _, a := range l.inUse(d.Pool) {
		if slices.ContainsFunc(here, func(i leasing.Interval) bool { return i.Contains(a) }) {
			used++
		}
	}
	return used, int(count(here)) - used
}

// A node without a container of a network takes a block of a page if at least 1/roomy of the network's addresses there are
// free, and returns it if less than 1/crowded are. So idle nodes do not use up a range.
const (
	roomy   = 2
	crowded = 4
)

// grow takes a block for a demand if few addresses are left, or if an ADD waits for one. It looks for the first block of a
// network without containers only if that is due.
func (k *Keeper) grow(ctx context.Context, l *local, d *store.RangeDemand, waits, due bool) (taken bool, err error) {
	used, free := k.usage(l, d, blockKey{})
	size := blockSize(count(intervals(d)), used)
	early := used == 0 && !waits
	enough := free > 0 && free >= reserve(size) || free == 0 && size == 1 && !waits || early && !due
	if !enough || waits {
		err = k.refuseForeign(ctx, intervals(d))
	}
	if errors.Is(err, errReturning) && !waits {
		return false, nil
	}
	if err != nil || enough {
		return false, err
	}
	err = k.take(ctx, d, size, early)
	if early && errors.Is(err, errNone) {
		return false, nil // its first ADD asks for a block
	}
	taken = err == nil
	if err != nil && free > 0 {
		k.log.Debug("no further block of a range", "network", d.Network, "error", err)
		err = nil // an ADD that finds no address returns it
	}
	return taken, err
}

// errNone means that no address of a range is free.
var errNone = errors.New("every address of the range belongs to a node")

// take takes a block of at most n addresses. If it is taken early, that is before an ADD, the error is errNone unless one
// of the likely pages is roomy.
func (k *Keeper) take(ctx context.Context, d *store.RangeDemand, n int, early bool) error {
	if err := k.Registry.Join(ctx); err != nil {
		return err
	}
	of := intervals(d)
	if err := k.takeFirst(ctx, d, of, n, early); err != nil {
		return err
	}
	// Another program may have got the range before the page was written. The block is not used then: see blocks.
	return k.refuseForeign(ctx, of)
}

// takeFirst tries the pages where this node has blocks, then some others, then those that a list shows to be free.
func (k *Keeper) takeFirst(ctx context.Context, d *store.RangeDemand, of []leasing.Interval, n int, early bool) error {
	all := pagesOf(of)
	for _, first := range k.likely(d.Pool, all) {
		ok, err := k.takeIn(ctx, d, first, of, n, early)
		if ok || err != nil && !errors.Is(err, cluster.ErrInvalid) { // takeListed names a damaged page
			return err
		}
	}
	if early {
		return errNone
	}
	return k.takeListed(ctx, d, all, of, n)
}

// likely returns those of the pages of a range where this node has blocks, and some others.
func (k *Keeper) likely(pool string, all []netip.Addr) (some []netip.Addr) {
	for _, name := range slices.Sorted(maps.Keys(k.pages)) {
		p := k.pages[name]
		if p.Pool == pool && slices.Contains(all, p.First) {
			some = append(some, p.First)
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.Node + pool))
	start := int(h.Sum32() >> 1) // an int may have 32 bits
	for i := range min(probes, len(all)) {
		some = append(some, all[(start+i)%len(all)])
	}
	return some
}

// takeIn takes a block of a page, if it has a free address, or early if it is roomy.
func (k *Keeper) takeIn(ctx context.Context, d *store.RangeDemand, first netip.Addr, of []leasing.Interval, n int, early bool) (ok bool, err error) {
	var incomplete error
	var b block
	err = k.change(ctx, pageName(d.Pool, first), func(p *page) bool {
		p.Pool, p.First, ok = d.Pool, first, false
		free := p.free(of)
		if incomplete = k.checkDeleted(p.name()); len(free) == 0 || early && !p.hasFree(of, roomy) || incomplete != nil {
			return false
		}
		b = block{First: free[0].Lo, Last: free[0].Lo, Node: k.Node, Machine: k.Machine, Since: k.Host.Now().UTC().Truncate(time.Second)}
		for range n - 1 {
			if b.Last == free[0].Hi {
				break
			}
			b.Last = b.Last.Next()
		}
		p.add(b)
		ok = true
		return true
	})
	if ok && err == nil {
		// The page may have been written and deleted since it was read. Nobody has got an address of the block.
		if incomplete = k.checkDeleted(pageName(d.Pool, first)); incomplete != nil {
			err = k.removeBlock(ctx, pageName(d.Pool, first), b.First)
		}
	}
	err = cmp.Or(err, incomplete)
	return ok && err == nil, err
}

// takeListed takes a block of a page that a list of all pages shows to have a free address. If there is none, it
// takes or claims a block of a node that does not exist.
func (k *Keeper) takeListed(ctx context.Context, d *store.RangeDemand, all []netip.Addr, of []leasing.Interval, n int) error {
	pages := map[netip.Addr]*page{}
	damaged := map[string]error{}
	claims := map[string]time.Time{} // those that still exist
	err := k.Registry.Pages().List(ctx, func(name string, raw []byte, _ string) {
		if isRegister(name) {
			return
		}
		p, err := decodePage(name, raw)
		if err != nil {
			damaged[name] = err
			return
		}
		for i := range p.Blocks {
			if since, known := k.claims[p.Blocks[i].Claim]; known {
				claims[p.Blocks[i].Claim] = since
			}
		}
		if p.Pool == d.Pool {
			pages[p.First] = p
		}
	})
	if err != nil {
		return err
	}
	k.claims = claims
	faults := []error{fmt.Errorf("%w: give the network %q a larger range, or delete containers", errNone, d.Network)}
	for _, first := range all {
		if p := pages[first]; p != nil && len(p.free(of)) == 0 {
			continue
		}
		if err := damaged[pageName(d.Pool, first)]; err != nil {
			faults = append(faults, err)
			continue
		}
		ok, err := k.takeIn(ctx, d, first, of, n, false)
		if ok || err != nil && !errors.Is(err, errDeleted) {
			return err
		}
		faults = append(faults, err)
	}
	gone := map[string]bool{}
	for _, first := range all {
		p := pages[first]
		if p == nil {
			continue
		}
		ok, err := k.takeOver(ctx, p, of, gone)
		if ok {
			return nil
		}
		faults = append(faults, err)
	}
	return errors.Join(append(faults, k.reclaim(ctx, d.Pool))...)
}

// takeOver claims the blocks of a page whose nodes have no record any more, and takes one whose claim has stayed
// for the grace period. gone caches which nodes have no record.
func (k *Keeper) takeOver(ctx context.Context, seen *page, of []leasing.Interval, gone map[string]bool) (ok bool, err error) {
	var lost []string
	for i := range seen.Blocks {
		b := &seen.Blocks[i]
		if b.Reserved != "" || k.own(b) || k.moves(b) || len(leasing.Within(of, b.interval())) == 0 {
			continue
		}
		is, known := gone[b.Node]
		if !known {
			// A machine with this node's name and another identity is an earlier installation of this node, or a
			// second machine with the same name, which removes the claim.
			if is = b.Node == k.Node; !is {
				if is, err = k.Registry.Gone(ctx, b.Node); err != nil {
					return false, err
				}
			}
			gone[b.Node] = is
		}
		if is && !slices.Contains(lost, b.Node) {
			lost = append(lost, b.Node)
		}
	}
	if len(lost) == 0 {
		return false, nil
	}
	err = k.change(ctx, seen.name(), func(p *page) (changed bool) {
		ok = false
		for i := range p.Blocks {
			b := &p.Blocks[i]
			if k.own(b) || k.moves(b) || !slices.Contains(lost, b.Node) || len(leasing.Within(of, b.interval())) == 0 {
				continue
			}
			since, known := k.claims[b.Claim]
			switch {
			case b.Claim == "":
				b.Claim, changed = rand.Text(), true
			case !known:
				k.claims[b.Claim] = k.clock()
			case k.clock().Sub(since) >= k.Grace && !ok:
				k.log.Warn("a block of a node without a record is taken", "block", b.interval().String(), "node", b.Node)
				*b = block{First: b.First, Last: b.Last, Node: k.Node, Machine: k.Machine, Since: k.Host.Now().UTC().Truncate(time.Second)}
				ok, changed = true, true
			}
		}
		return changed
	})
	if err == nil && !ok {
		err = fmt.Errorf("the blocks of %s, which the registry does not know any more, are taken after %s", strings.Join(lost, ", "), k.Grace)
	}
	return ok && err == nil, err
}

// shrink returns blocks that were empty for a time, unless they are the reserve of a demand.
func (k *Keeper) shrink(ctx context.Context, l *local) error {
	now := k.clock()
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(k.pages)) {
		p := k.pages[name]
		for i := range p.Blocks {
			b, key := &p.Blocks[i], blockKey{p.Pool, p.Blocks[i].First}
			if !k.own(b) {
				continue
			}
			if slices.ContainsFunc(l.inUse(p.Pool), b.interval().Contains) {
				delete(k.idle, key)
				continue
			}
			if k.idle[key].IsZero() {
				k.idle[key] = now
			}
			if now.Sub(k.idle[key]) < k.Idle || k.needed(l, p.page, key) {
				continue
			}
			if err := k.giveBack(ctx, name, p.Pool, b); err != nil {
				faults = append(faults, err)
			}
			delete(k.idle, key)
			break // the page has changed; the others follow in the next pass
		}
	}
	return errors.Join(faults...)
}

// needed reports whether a demand would have no reserve without a block of a page. A network without containers does not
// need it in a crowded page.
func (k *Keeper) needed(l *local, p *page, key blockKey) bool {
	needs := func(d store.RangeDemand) bool {
		if d.Pool != p.Pool {
			return false
		}
		_, with := k.usage(l, &d, blockKey{})
		used, without := k.usage(l, &d, key)
		return with > without && without < reserve(blockSize(count(intervals(&d)), used)) && (used > 0 || p.hasFree(intervals(&d), crowded))
	}
	return slices.ContainsFunc(l.demands, needs) || slices.ContainsFunc(k.planned, needs)
}

// giveBack returns a block. It first removes the block from node.db, in a transaction that finds no lease of it,
// so that no ADD uses it any more.
func (k *Keeper) giveBack(ctx context.Context, name, pool string, b *block) error {
	first, in := b.First, b.interval()
	used := false
	err := k.Host.Store.Update(ctx, func(tx *store.Tx) error {
		leases, err := leasesIn(tx, pool, []leasing.Interval{in})
		if used = len(leases) > 0; used || err != nil {
			return err
		}
		blocks, err := tx.RangeBlocks()
		if err != nil {
			return err
		}
		return tx.PutRangeBlocks(slices.DeleteFunc(blocks, func(b store.RangeBlock) bool { return b.Pool == pool && b.First == first }))
	})
	if err != nil || used {
		return err
	}
	if err := k.removeBlock(ctx, name, first); err != nil {
		return fmt.Errorf("return block %s of a range: %w", first, err)
	}
	k.log.Info("an empty block of a range is returned", "first", first.String())
	return nil
}

// removeBlock removes a block of this node from a page.
func (k *Keeper) removeBlock(ctx context.Context, name string, first netip.Addr) error {
	return k.change(ctx, name, func(p *page) bool {
		before := len(p.Blocks)
		p.Blocks = slices.DeleteFunc(p.Blocks, func(b block) bool { return k.own(&b) && b.First == first })
		return len(p.Blocks) < before
	})
}
