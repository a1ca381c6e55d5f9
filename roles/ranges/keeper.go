// Package ranges leases blocks of cluster-wide ranges for this node.
//
// The registry has pages. A page records which nodes have which blocks of 256 addresses, and a node changes it by
// compare-and-swap. The keeper, a part of the agent, writes this node's blocks to node.db, where ADD allocates
// from them without a request. A block is valid for a limited time after the keeper read it in the registry.
// Another node takes a block of a node that has no record any more. Before, it writes a claim into the block
// and waits for twice the time of validity. The owner, if it lives, removes the claim. So while both nodes
// follow these rules they never give out the same address, whatever record the registry has lost.
package ranges

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/daemon/process"
	"github.com/cnibox/cnibox/roles/leasing"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// Times of a Keeper.
const (
	// validity is the time after a page was read in which addresses are given out of this node's blocks.
	validity = 15 * time.Minute
	// grace is the time for which a claim must stay before another node takes the block.
	grace = 2 * validity
	// verifyInterval is the time between two readings of this node's pages.
	verifyInterval = 4 * time.Minute
	// idleTime is the time after which an empty block is returned.
	idleTime = 10 * time.Minute
	// demandTime is the time after which a demand of a network without addresses is forgotten.
	demandTime = time.Hour
	// settleTime is the delay after a notification, in which others arrive.
	settleTime = 100 * time.Millisecond
	// tickTime is the interval of the search for idle blocks.
	tickTime = time.Minute
	// socketTime is the interval of attempts to open the socket, which another program may have deleted.
	socketTime = 2 * time.Second
	// passTime bounds one pass.
	passTime = askTime - time.Second
)

// Options are the arguments of NewKeeper.
type Options struct {
	Host     *roles.Host
	Registry cluster.Ranges
	// Node is this node's name. Machine differs from that of every other machine.
	Node, Machine string
	// Claims is nil if the registry has no IPAMClaim objects.
	Claims cluster.IPAMClaims
	// Idle and Grace replace idleTime and grace in tests. 0 means the default.
	Idle, Grace time.Duration
}

// Keeper leases blocks for this node.
type Keeper struct {
	Options
	log *slog.Logger
	// pages are the pages with blocks of this node, by name, as they were last read or written.
	pages map[string]*heldPage
	// listed is false until all pages were read, and after a write whose outcome is not known.
	listed   bool
	verified time.Time
	// refused is the time of the last failed list if this node used no range then. The agent may have no right to
	// read ranges, so it does not repeat the request at each tick.
	refused time.Time
	// unsure has the pages to which a write without an answer may still come, also of a former process. Their
	// blocks are not used before another write, after which the former one fails.
	unsure map[string]bool
	// claims has the times at which the registry's claims were read first. This node's own ones are no
	// exception, because a write may be executed long after its request.
	claims map[string]time.Time
	// idle has the times since which blocks are empty, by pool and first address.
	idle map[blockKey]time.Time
	// registers has the reservations that this node holds, or held last, by register, as last read.
	registers map[string][]*reservation
	// fences has the times at which fences of holders were read first.
	fences map[string]time.Time
	// quiet is true if this node waits until another node's hold ends.
	quiet bool

	// socketErr is why ADD calls are not served.
	socketErr error

	changes chan struct{}
	mu      sync.Mutex
	fault   error
}

// heldPage is a page and the times before it was read.
type heldPage struct {
	*page
	read      time.Time
	sinceBoot time.Duration
}

type blockKey struct {
	pool  string
	first netip.Addr
}

// NewKeeper returns a Keeper. Run starts it.
func NewKeeper(o Options) *Keeper {
	if o.Idle == 0 {
		o.Idle = idleTime
	}
	if o.Grace == 0 {
		o.Grace = grace
	}
	return &Keeper{Options: o, log: o.Host.Log, pages: map[string]*heldPage{}, unsure: map[string]bool{}, claims: map[string]time.Time{}, idle: map[blockKey]time.Time{}, registers: map[string][]*reservation{}, fences: map[string]time.Time{}, changes: make(chan struct{}, 1)}
}

// Fault returns the error of the last pass, or nil.
func (k *Keeper) Fault() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fault
}

// Changes returns a channel that receives after Fault has changed.
func (k *Keeper) Changes() <-chan struct{} { return k.changes }

func (k *Keeper) setFault(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fmt.Sprint(err) == fmt.Sprint(k.fault) {
		return
	}
	if err != nil {
		k.log.Warn("lease blocks of cluster-wide ranges", "error", err)
	}
	k.fault = err
	select {
	case k.changes <- struct{}{}:
	default: // a wake-up is pending
	}
}

// Run serves ADD calls and keeps this node's blocks until ctx ends. The blocks stay after that.
func (k *Keeper) Run(ctx context.Context) {
	requests := make(chan *request)
	socket := process.NewSocket(Socket(k.Host))
	defer socket.Close()
	serving := k.open(socket)
	if serving {
		go socket.Serve(ctx, accept(requests, ctx.Done()))
	}
	check := time.NewTicker(socketTime)
	defer check.Stop()
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	next := time.After(0)
	var waiting []*request
	for {
		select {
		case <-ctx.Done():
			for _, r := range waiting {
				r.reply(ctx.Err())
			}
			return
		case r := <-requests:
			if !r.waits() {
				r.reply(nil)
				if next == nil {
					next = time.After(settleTime)
				}
				continue
			}
			waiting = append(waiting, r)
			waiting = append(waiting, pending(requests)...)
		case <-check.C:
			before := k.socketErr
			if k.open(socket) && !serving {
				serving = true
				go socket.Serve(ctx, accept(requests, ctx.Done()))
			}
			if fmt.Sprint(before) == fmt.Sprint(k.socketErr) {
				continue
			}
		case <-tick.C:
		case <-next:
		}
		waiting = k.serveReservations(ctx, waiting)
		wanted := map[string]bool{}
		for _, r := range waiting {
			wanted[r.network] = true
		}
		err := k.pass(ctx, wanted)
		for _, r := range waiting {
			if wanted[r.network] {
				r.reply(err)
			} else {
				r.reply(nil)
			}
		}
		waiting, next = nil, k.nextRead()
	}
}

// serveReservations answers the requests for reservations and returns the others.
func (k *Keeper) serveReservations(ctx context.Context, all []*request) (others []*request) {
	for _, r := range all {
		if r.reserve != nil {
			r.reply(k.serve(ctx, r.reserve))
		} else {
			others = append(others, r)
		}
	}
	return others
}

// open opens the socket if it is not open or its file was deleted, and reports whether it is open.
func (k *Keeper) open(s *process.Socket) bool {
	k.socketErr = s.Open()
	if k.socketErr != nil {
		k.socketErr = fmt.Errorf("serve ADD calls: %w", k.socketErr)
	}
	return k.socketErr == nil
}

// pending returns the clients that wait already. A notification among them needs no pass of its own.
func pending(requests <-chan *request) (all []*request) {
	for {
		select {
		case r := <-requests:
			if !r.waits() {
				r.reply(nil)
				continue
			}
			all = append(all, r)
		default:
			return all
		}
	}
}

// pass verifies this node's blocks if that is due, takes blocks where addresses become scarce, and returns empty
// ones. wanted are the networks whose ADDs wait. Those that got blocks are false after the pass, and its error does
// not concern them.
func (k *Keeper) pass(ctx context.Context, wanted map[string]bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	var damaged error // concerns no ADD that waits: it has stored its demands again
	defer func() { k.setFault(errors.Join(err, damaged, k.socketErr)) }()
	if !k.listed && len(wanted) == 0 && time.Since(k.refused) < verifyInterval {
		return nil
	}
	due := time.Since(k.verified) >= verifyInterval
	if !k.listed || due || len(k.unsure) > 0 || len(wanted) > 0 && k.expired() {
		err = k.verify(ctx)
		if !k.listed {
			return k.unlisted(ctx, wanted, err)
		}
	}
	_ = k.publish(ctx) // the second one returns the same error
	local, readErr := k.read(ctx)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	damaged = local.damaged
	faults := []error{err}
	served, refused := map[string]bool{}, map[string]bool{}
	for i := range local.demands {
		d := &local.demands[i]
		taken, err := k.grow(ctx, local, d, wanted)
		if taken {
			served[d.Network] = true
		}
		if err != nil {
			faults = append(faults, err)
			refused[d.Network] = true
		}
	}
	for network := range served {
		wanted[network] = refused[network]
	}
	faults = append(faults, k.publish(ctx), k.updateReservations(ctx, due))
	return errors.Join(append(faults, k.shrink(ctx, local))...)
}

// unlisted returns the error of a failed list, or nil if this node uses no range.
func (k *Keeper) unlisted(ctx context.Context, wanted map[string]bool, err error) error {
	k.refused = time.Time{}
	if len(wanted) > 0 {
		return err
	}
	used := false
	viewErr := k.Host.Store.View(ctx, func(tx *store.Tx) error {
		blocks, blocksErr := tx.RangeBlocks()
		demands, demandsErr := tx.RangeDemands()
		reservations, reservationsErr := tx.RangeReservations()
		used = len(blocks)+len(demands)+len(reservations) > 0
		return errors.Join(blocksErr, demandsErr, reservationsErr)
	})
	if used || viewErr != nil {
		return errors.Join(err, viewErr)
	}
	k.refused = time.Now()
	k.log.Debug("cannot read cluster-wide ranges", "error", err)
	return nil
}

// expired reports whether a block of this node is not valid.
func (k *Keeper) expired() bool {
	for _, p := range k.pages {
		for _, b := range k.blocks(p) {
			if !b.Valid(k.Host.Now()) {
				return true
			}
		}
	}
	return false
}

// own reports whether this machine has a block.
func (k *Keeper) own(b *block) bool { return b.Node == k.Node && b.Machine == k.Machine }

func (k *Keeper) owns(p *page) bool {
	return slices.ContainsFunc(p.Blocks, func(b block) bool { return k.own(&b) })
}

// blocks returns this node's blocks of a page, unless an older write may still remove them. None has a claim,
// because change removes it.
func (k *Keeper) blocks(p *heldPage) (out []store.RangeBlock) {
	for i := range p.Blocks {
		b := &p.Blocks[i]
		if !k.own(b) || k.unsure[p.name()] {
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
	if !k.listed {
		if err := k.list(ctx); err != nil {
			return err
		}
	}
	if len(k.pages)+len(k.registers) > 0 {
		if err := k.Registry.Join(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	names := slices.Concat(slices.Collect(maps.Keys(k.pages)), slices.Collect(maps.Keys(k.unsure)))
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if err := k.change(ctx, name, func(*page) bool { return false }); err != nil {
			faults = append(faults, err)
		}
	}
	k.verified = time.Now()
	if len(faults) > 0 {
		k.verified = k.verified.Add(tickTime - verifyInterval) // it is due again at the next tick
	}
	return errors.Join(faults...)
}

// list finds all pages with a block of this node.
func (k *Keeper) list(ctx context.Context) error {
	now, sinceBoot := k.Host.Now(), store.SinceBoot()
	pages := map[string]*heldPage{}
	err := k.Registry.Pages(ctx, func(name string, raw []byte) {
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
		} else if k.owns(p) {
			pages[name] = &heldPage{p, now, sinceBoot}
			k.unsure[name] = true
		}
	})
	if err == nil {
		k.pages, k.listed = pages, true
	}
	return err
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

// swap reads an object of the registry, which is empty if it does not exist, and writes what fn makes of it, until no
// other node has written meanwhile. If fn returns nil, swap writes nothing.
func (k *Keeper) swap(ctx context.Context, name string, fn func(raw []byte) ([]byte, error)) (written bool, err error) {
	wait := web.Backoff{Min: 2 * time.Millisecond, Max: 200 * time.Millisecond}
	for try := 1; ; try++ {
		raw, version, err := k.Registry.ReadPage(ctx, name)
		if err == nil && version != "" && len(raw) == 0 {
			raw = []byte(" ") // it exists and is damaged
		}
		if err == nil {
			raw, err = fn(raw)
		}
		if err != nil || raw == nil {
			return false, err
		}
		err = k.Registry.WritePage(ctx, name, raw, version)
		if errors.Is(err, cluster.ErrRaced) && try < raceLimit && wait.Wait(ctx, 0) == nil {
			continue
		}
		if err != nil {
			err = fmt.Errorf("page %s of ranges: %w", name, err)
		}
		return true, err
	}
}

// change changes a page with fn, after it has removed claims on this node's blocks. It stores the page in k.pages if
// this node has a block of it.
func (k *Keeper) change(ctx context.Context, name string, fn func(*page) (changed bool)) error {
	var held *heldPage
	now, sinceBoot := k.Host.Now(), store.SinceBoot()
	written, err := k.swap(ctx, name, func(raw []byte) (_ []byte, err error) {
		held = &heldPage{&page{}, now, sinceBoot}
		if len(raw) > 0 {
			held.page, err = decodePage(name, raw)
			if err != nil {
				return nil, err
			}
		}
		write := k.removeClaims(held.page) || k.unsure[name] && len(raw) > 0
		if !fn(held.page) && !write {
			return nil, nil
		}
		held.Revision++
		return held.encode()
	})
	if err != nil {
		if written {
			k.unsure[name] = k.unsure[name] || !errors.Is(err, cluster.ErrRaced)
			k.listed = k.listed && errors.Is(err, cluster.ErrRaced)
		}
		return err
	}
	delete(k.unsure, name)
	delete(k.pages, name)
	if k.owns(held.page) {
		k.pages[name] = held
	}
	return nil
}

// publish writes this node's blocks to node.db. It first restores those that the registry has lost. A block
// that it cannot restore, and one of an unsure page, stays valid until its former time.
func (k *Keeper) publish(ctx context.Context) error {
	var before []store.RangeBlock
	err := k.Host.Store.View(ctx, func(tx *store.Tx) (err error) {
		before, err = tx.RangeBlocks()
		return err
	})
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
		if b := &before[i]; failed[i] || len(k.lost(b)) == 0 && k.unsure[pageName(b.Pool, pageOf(b.First))] {
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
	err = k.Host.Store.View(ctx, func(tx *store.Tx) error {
		leases, err = leasesIn(tx, b.Pool, lost)
		return err
	})
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
	ids, err := tx.Pools()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !strings.HasPrefix(id.DataDir, store.RangeDataDir) && !recovery.IsPoolUnknown(id) {
			continue
		}
		pool, err := tx.Pool(id)
		if err != nil {
			return err
		}
		for l, err := range pool.Leases() {
			if err != nil {
				return err
			}
			fn(id, &l)
		}
	}
	return nil
}
