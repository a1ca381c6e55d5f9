package ranges

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// This node's blocks are recorded in pages of the registry, and in node.db for ADD.

// expired reports whether a block of this node is not valid.
func (k *Keeper) expired() bool {
	for _, p := range k.pages {
		for _, b := range k.blocks(p) {
			if !b.Valid(k.Host.Now(), k.Host.SinceBoot()) {
				return true
			}
		}
	}
	return false
}

// own reports whether this machine has a block.
func (k *Keeper) own(b *block) bool { return b.Node == k.Node && b.Machine == k.Machine }

// moves reports whether addresses of a block move from whereabouts to this node, or back.
func (k *Keeper) moves(b *block) bool { return b.Node == k.Node && b.Machine == "" }

// concerns reports whether this node has a block of a page.
func (k *Keeper) concerns(p *page) bool {
	return slices.ContainsFunc(p.Blocks, func(b block) bool { return k.own(&b) || k.moves(&b) })
}

// blocks returns this node's blocks of a page, unless an older write may still remove them or another program uses
// their addresses. None has a claim, because change removes it.
func (k *Keeper) blocks(p *heldPage) (out []store.RangeBlock) {
	for i := range p.Blocks {
		b := &p.Blocks[i]
		if !k.own(b) || k.unsure[p.name()] || k.foreign.overlap(b.interval()) != nil {
			continue
		}
		out = append(out, store.RangeBlock{
			Pool: p.Pool, First: b.First, Last: b.Last, Since: b.Since, Until: p.read.Add(validity).UTC(), UntilBoot: p.sinceBoot + validity,
		})
	}
	return out
}

// verify reads this node's pages, or all pages if it does not know which ones are this node's.
func (k *Keeper) verify(ctx context.Context) error {
	var faults []error
	if !k.listed || k.clock().Sub(k.listedAt) >= relistTime {
		if err := k.list(ctx); err != nil && !k.listed {
			return err
		}
	}
	if len(k.pages)+len(k.registers) > 0 {
		if err := k.Registry.Join(ctx); err != nil {
			faults = append(faults, err)
		}
		if err := k.readForeign(ctx); err != nil {
			return err
		}
	}
	names := slices.Concat(slices.Collect(maps.Keys(k.pages)), slices.Collect(maps.Keys(k.unsure)))
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if err := k.change(ctx, name, func(*page) bool { return false }); err != nil {
			faults = append(faults, err)
		}
	}
	k.verified = k.clock()
	if len(faults) > 0 {
		k.verified = k.verified.Add(tickTime - verifyInterval) // it is due again at the next tick
	}
	return errors.Join(faults...)
}

// list finds all pages with a block of this node.
func (k *Keeper) list(ctx context.Context) error {
	now, sinceBoot := k.Host.Now(), k.Host.SinceBoot()
	pages := map[string]*heldPage{}
	err := k.Registry.Pages().List(ctx, func(name string, raw []byte, _ string) {
		if isRegister(name) {
			g, err := decodeRegister(name, raw)
			if err == nil {
				k.keepRegister(name, g)
			} else {
				k.log.Warn("reservations of ranges are left out: correct or delete the object", "error", err)
			}
			return
		}
		p, err := decodePage(name, raw)
		if err != nil {
			k.log.Warn("a page of ranges is left out: correct or delete it", "error", err)
		} else if k.concerns(p) {
			pages[name] = &heldPage{p, now, sinceBoot}
			k.unsure[name] = true
		}
	})
	if err == nil {
		k.pages, k.listed, k.listedAt = pages, true, k.clock()
	}
	return err
}

// readDeleted reads which pages were deleted.
func (k *Keeper) readDeleted() {
	if k.Deletions == nil {
		return
	}
	for _, name := range k.Deletions.DeletedPages() {
		k.log.Warn("another program has deleted pages of ranges: the nodes record the addresses that are in use again", "page", cmp.Or(name, "all"))
		k.deleted[name], k.erased = k.clock(), true
	}
}

// errDeleted means that nodes may still have addresses of a page that does not say so.
var errDeleted = errors.New("another program has deleted the page, and its nodes record their addresses again")

// checkDeleted returns errDeleted for a page that was deleted a short time ago. The page must have been read before.
func (k *Keeper) checkDeleted(name string) error {
	k.readDeleted()
	for _, of := range []string{name, ""} {
		if k.clock().Sub(k.deleted[of]) < restoreTime {
			return fmt.Errorf("page %s of ranges: %w: %w: try again in %s", name, cluster.ErrInvalid, errDeleted, restoreTime)
		}
	}
	return nil
}

// removeClaims removes the claims on this node's blocks and reports whether there were any.
func (k *Keeper) removeClaims(p *page) (changed bool) {
	for i := range p.Blocks {
		if b := &p.Blocks[i]; k.own(b) && b.Claim != "" {
			k.log.Warn("another node found no record of this node and claimed one of its blocks: the claim is removed", "block", b.interval().String())
			b.Claim, changed = "", true
		}
	}
	return changed
}

// raceLimit bounds the attempts to change a page that other nodes change.
const raceLimit = 30

// change changes a page with fn, and writes it if something has changed. It removes claims on this node's blocks, and
// stores the page in k.pages if this node has a block of it.
func (k *Keeper) change(ctx context.Context, name string, fn func(*page) (changed bool)) error {
	read, sinceBoot := k.Host.Now(), k.Host.SinceBoot()
	p, failed, err := changePage(ctx, k.Registry, name, func(p *page, exists bool) bool {
		write := k.removeClaims(p) || k.unsure[name] && exists
		return fn(p) || write
	})
	if failed {
		k.unsure[name] = k.unsure[name] || !errors.Is(err, cluster.ErrRaced)
		k.listed = k.listed && errors.Is(err, cluster.ErrRaced)
	}
	if err != nil {
		return err
	}
	delete(k.unsure, name)
	delete(k.pages, name)
	if k.concerns(p) {
		k.pages[name] = &heldPage{p, read, sinceBoot}
	}
	return nil
}

// changePage reads a page, changes it with fn, and writes it if something has changed. failed means that the write failed.
func changePage(ctx context.Context, r cluster.Ranges, name string, fn func(p *page, exists bool) (changed bool)) (p *page, failed bool, err error) {
	written, err := swap(ctx, r, name, func(raw []byte) (_ []byte, err error) {
		p = &page{}
		if len(raw) > 0 {
			p, err = decodePage(name, raw)
			if err != nil {
				return nil, err
			}
		}
		if !fn(p, len(raw) > 0) {
			return nil, nil
		}
		p.Revision++
		return p.encode()
	})
	return p, written && err != nil, err
}

// swap reads an object of the registry, which is empty if it does not exist, and writes what fn makes of it, until
// nobody else has written meanwhile. If fn returns nil, swap writes nothing.
func swap(ctx context.Context, r cluster.Ranges, name string, fn func(raw []byte) ([]byte, error)) (written bool, err error) {
	wait := web.Backoff{Min: 2 * time.Millisecond, Max: 200 * time.Millisecond}
	for try := 1; ; try++ {
		raw, version, err := r.Pages().Read(ctx, name)
		if err == nil && version != "" && len(raw) == 0 {
			raw = []byte(" ") // it exists and is damaged
		}
		if err == nil {
			raw, err = fn(raw)
		}
		if err != nil || raw == nil {
			return false, err
		}
		_, err = r.Pages().Write(ctx, name, raw, version)
		if errors.Is(err, cluster.ErrRaced) && try < raceLimit && wait.Wait(ctx, 0) == nil {
			continue
		}
		if err != nil {
			err = fmt.Errorf("page %s of ranges: %w", name, err)
		}
		return true, err
	}
}

// publish writes this node's blocks to node.db. It first restores those that the registry has lost. A block
// that it cannot restore, and one of an unsure page, stays valid until its former time.
func (k *Keeper) publish(ctx context.Context) error {
	before, err := store.Read(ctx, k.Host.Store, (*store.Tx).RangeBlocks)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	var faults []error
	failed := map[int]bool{}
	for i := range before {
		if fault := k.restore(ctx, &before[i]); fault != nil {
			faults, failed[i] = append(faults, fault), true
		}
	}
	var now []store.RangeBlock
	for _, name := range slices.Sorted(maps.Keys(k.pages)) {
		now = append(now, k.blocks(k.pages[name])...)
	}
	for i := range before {
		b := &before[i]
		keep := failed[i] || len(k.lost(b)) == 0 && k.unsure[pageName(b.Pool, pageOf(b.First))]
		if keep && k.foreign.overlap(leasing.Interval{Lo: b.First, Hi: b.Last}) == nil {
			now = append(now, *b)
		}
	}
	if err != nil || !slices.Equal(before, now) {
		faults = append(faults, k.Host.Store.Update(ctx, func(tx *store.Tx) error { return tx.PutRangeBlocks(now) }))
	}
	return errors.Join(faults...)
}

// lost returns the parts of a block that this node does not have according to the registry.
func (k *Keeper) lost(b *store.RangeBlock) []leasing.Interval {
	if p := k.pages[pageName(b.Pool, pageOf(b.First))]; p != nil {
		return k.missing(p.page, b)
	}
	return k.missing(&page{}, b)
}

// missing returns the parts of a block that this node does not have according to a page.
func (k *Keeper) missing(p *page, b *store.RangeBlock) []leasing.Interval {
	var own []leasing.Interval
	for i := range p.Blocks {
		if k.own(&p.Blocks[i]) {
			own = append(own, p.Blocks[i].interval())
		}
	}
	return leasing.Subtract(leasing.Interval{Lo: b.First, Hi: b.Last}, own)
}

// restore takes the lost parts of a block again if addresses of them are in use, because its page was deleted,
// edited or restored from a backup. It logs the containers whose addresses another node has.
func (k *Keeper) restore(ctx context.Context, b *store.RangeBlock) error {
	leases, err := k.lostLeases(ctx, b)
	if err != nil || len(leases) == 0 {
		return err
	}
	first := pageOf(b.First)
	err = k.change(ctx, pageName(b.Pool, first), func(p *page) bool {
		p.Pool, p.First = b.Pool, first
		free := p.free(k.missing(p, b))
		for _, i := range free {
			k.log.Warn("the registry has lost a block of this node: it is taken again", "block", i.String())
			p.add(block{First: i.Lo, Last: i.Hi, Node: k.Node, Machine: k.Machine, Since: b.Since})
		}
		return len(free) > 0
	})
	if err != nil {
		return err
	}
	leases, err = k.lostLeases(ctx, b)
	if len(leases) > 0 {
		k.log.Error("another node has a block of this node whose addresses are in use here: delete these containers", "block", b.First.String(), "leases", leases)
	}
	return err
}

// lostLeases returns the leases of the lost parts of a block.
func (k *Keeper) lostLeases(ctx context.Context, b *store.RangeBlock) (leases []string, err error) {
	lost := k.lost(b)
	if len(lost) == 0 {
		return nil, nil
	}
	leases, err = store.Read(ctx, k.Host.Store, func(tx *store.Tx) ([]string, error) { return leasesIn(tx, b.Pool, lost) })
	return leases, err
}

// leasesIn returns the leases of a pool's addresses in intervals, as text.
func leasesIn(tx *store.Tx, pool string, in []leasing.Interval) (out []string, err error) {
	err = eachLease(tx, func(id store.PoolID, l *store.Lease) {
		is := id.DataDir == store.RangeDir(pool) || recovery.IsPoolUnknown(id)
		if is && slices.ContainsFunc(in, func(i leasing.Interval) bool { return i.Contains(l.Address) }) {
			out = append(out, fmt.Sprintf("%s container %.64q interface %.16q", l.Address, l.Owner.ContainerID, l.Owner.IfName))
		}
	})
	return out, err
}

// eachLease calls fn with each lease of a range and its pool, and with each rebuilt lease of an unknown pool,
// which may be of any range.
func eachLease(tx *store.Tx, fn func(id store.PoolID, l *store.Lease)) error {
	return tx.EachPool("", func(p *store.Pool) error {
		if !strings.HasPrefix(p.ID().DataDir, store.RangeDataDir) && !recovery.IsPoolUnknown(p.ID()) {
			return nil
		}
		leases, err := store.Collect(p.Leases())
		for i := range leases {
			fn(p.ID(), &leases[i])
		}
		return err
	})
}
