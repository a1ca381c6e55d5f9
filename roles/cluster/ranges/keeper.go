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
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// Times of a Keeper.
const (
	// validity is the time after a page was read in which addresses are given out of this node's blocks.
	validity = 15 * time.Minute
	// grace is the time for which a claim must stay before another node takes the block.
	grace = 2 * validity
	// verifyInterval is the time between two readings of this node's pages.
	verifyInterval = 4 * time.Minute
	// relistTime is the time between two readings of all pages: a write of a former process may be executed after the first one,
	// and this node does not know the block that it got by that.
	relistTime = 6 * time.Hour
	// idleTime is the time after which an empty block is returned.
	idleTime = 10 * time.Minute
	// demandTime is the time after which a demand of a network without addresses is forgotten.
	demandTime = time.Hour
	// settleTime is the delay after a notification, in which others arrive.
	settleTime = 100 * time.Millisecond
	// tickTime is the interval of the search for idle blocks.
	tickTime = time.Minute
	// checkTime is the interval of looks at the agent's socket, which another program may have deleted, and for deleted pages.
	checkTime = 2 * time.Second
	// restoreTime is the time after a page was deleted in which its nodes record their blocks again, and nobody takes others.
	restoreTime = 15 * time.Second
	// passTime bounds one pass.
	passTime = askTime - time.Second
)

// Options are the arguments of NewKeeper.
type Options struct {
	Host *roles.Host
	// Server is the agent's, which answers ADD calls.
	Server   *service.Server
	Registry cluster.Ranges
	// Node is this node's name. Machine differs from that of every other machine.
	Node, Machine string
	// Planned returns what the node's networks will demand, without their ADDs. It is nil if that is not known.
	Planned func() []store.RangeDemand
	// Deletions is nil if the registry does not know which pages other programs delete.
	Deletions cluster.PageDeletions
	// Claims is nil if the registry has no IPAMClaim objects.
	Claims cluster.IPAMClaims
	// Sole means that the agent does nothing else, so it always needs the registry.
	Sole bool
	// Idle and Grace replace idleTime and grace in tests. 0 means the default.
	Idle, Grace time.Duration
}

// Keeper leases blocks for this node.
type Keeper struct {
	Options
	log *slog.Logger
	// pages are the pages with blocks of this node, by name, as they were last read or written.
	pages map[string]*heldPage
	// listed is false until all pages were read, and after a write whose outcome is not known. listedAt is when they were read.
	listed             bool
	listedAt, verified time.Time
	// refused is the time of the last failed list if this node used no range then. The agent may have no right to
	// read ranges, so it does not repeat the request at each tick.
	refused time.Time
	// unsure has the pages to which a write without an answer may still come, also of a former process. Their
	// blocks are not used before another write, after which the former one fails.
	unsure map[string]bool
	// claims has the times at which the registry's claims were read first. This node's own ones are no
	// exception, because a write may be executed long after its request.
	claims map[string]time.Time
	// deleted has the times at which pages were found to be deleted, "" for all. erased is true until they are listed again.
	deleted map[string]time.Time
	erased  bool
	// idle has the times since which blocks are empty, by pool and first address.
	idle map[blockKey]time.Time
	// registers has the reservations that this node holds, or held last, by register, as last read.
	registers map[string][]*reservation
	// fences has the times at which fences of holders were read first.
	fences map[string]time.Time
	// quiet is true if this node waits until another node's hold ends.
	quiet bool

	// planned is what Options.Planned returned last.
	planned []store.RangeDemand
	// foreign are the ranges of which another program gives addresses.
	foreign foreignRanges
	// absent has the times since which the runtimes' caches lack containers of whereabouts, by address.
	absent map[netip.Addr]time.Time

	// socketErr is why ADD calls are not served.
	socketErr error

	requests chan *request
	// notified is sent to when addresses were given out or released.
	notified chan struct{}
	changes  chan struct{}
	mu       sync.Mutex
	fault    error
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
	return &Keeper{
		Options: o, log: o.Host.Log, pages: map[string]*heldPage{}, unsure: map[string]bool{}, claims: map[string]time.Time{}, deleted: map[string]time.Time{},
		idle: map[blockKey]time.Time{}, registers: map[string][]*reservation{}, fences: map[string]time.Time{}, absent: map[netip.Addr]time.Time{},
		requests: make(chan *request), notified: make(chan struct{}, 1), changes: make(chan struct{}, 1),
	}
}

// clock returns a time for differences. It does not depend on the wall clock.
func (k *Keeper) clock() time.Time { return time.Unix(0, 0).Add(k.Host.SinceBoot()) }

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
	k.readDeleted() // what is deleted from now on is known
	k.readSocketErr()
	defer k.Server.Handle(k.handlers())()
	check := time.NewTicker(checkTime)
	defer check.Stop()
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	next := time.After(0)
	var waiting []*request
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.notified:
			if next == nil {
				next = time.After(settleTime)
			}
			continue
		case r := <-k.requests:
			waiting = append(k.pending(), r)
		case <-check.C:
			before := k.socketErr
			k.readSocketErr()
			k.readDeleted()
			if fmt.Sprint(before) == fmt.Sprint(k.socketErr) && !k.erased {
				continue
			}
		case <-tick.C:
		case <-next:
		}
		if errors.Is(k.socketErr, service.ErrRuns) {
			// The other agent changes the node's pages, so this one would write blocks to node.db that the node has returned.
			k.listed = false
			k.setFault(k.socketErr)
			for _, r := range waiting {
				r.done <- k.socketErr
			}
			waiting, next = nil, nil
			continue
		}
		k.serveAll(ctx, waiting)
		waiting, next = nil, k.nextRead()
	}
}

// readSocketErr finds out whether ADD calls are served.
func (k *Keeper) readSocketErr() {
	k.socketErr = k.Server.Fault()
	if k.socketErr != nil {
		k.socketErr = fmt.Errorf("serve ADD calls: %w", k.socketErr)
	}
}

// everyNetwork is in place of a network's name, of which no name begins with "*", for a request to read all pages again.
const everyNetwork = "*"

// serveAll answers requests, those for reservations first, and makes a pass.
func (k *Keeper) serveAll(ctx context.Context, all []*request) {
	wanted := map[string]bool{}
	for _, r := range all {
		switch {
		case r.reserve != nil:
			r.done <- k.serve(ctx, r.reserve)
			continue
		case r.reread:
			r.Network, k.listed = everyNetwork, false
		}
		wanted[r.Network] = true
	}
	err := k.Pass(ctx, wanted)
	for _, r := range all {
		switch {
		case r.reserve != nil:
		case wanted[r.Network]:
			r.done <- err
		default:
			r.done <- nil
		}
	}
}

// pending returns the clients that wait already.
func (k *Keeper) pending() (all []*request) {
	for {
		select {
		case r := <-k.requests:
			all = append(all, r)
		default:
			return all
		}
	}
}

// Pass verifies this node's blocks if that is due, takes blocks where addresses become scarce, and returns empty
// ones. wanted are the networks whose ADDs wait. Those that got blocks are false after the pass, and its error does
// not concern them.
func (k *Keeper) Pass(ctx context.Context, wanted map[string]bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	var damaged error // concerns no ADD that waits: it has stored its demands again
	defer func() { k.setFault(errors.Join(err, damaged, k.foreign.faults(), k.socketErr)) }()
	k.listed, k.erased = k.listed && !k.erased, false
	due := len(wanted) == 0 && k.plan() // an ADD does not wait for files
	if !k.listed && !due && len(wanted) == 0 && k.clock().Sub(k.refused) < verifyInterval {
		return nil
	}
	due = due || k.clock().Sub(k.verified) >= verifyInterval
	if !k.listed || due || len(k.unsure) > 0 || len(wanted) > 0 && k.expired() {
		err = k.verify(ctx)
		if !k.listed {
			return k.unlisted(ctx, wanted, err)
		}
	}
	if k.publish(ctx) == nil { // the second one returns the same error
		err = errors.Join(err, k.adopt(ctx), k.handOver(ctx))
	}
	if wanted[everyNetwork] {
		err = errors.Join(err, k.readForeign(ctx), k.foreign.err())
	}
	local, readErr := k.read(ctx)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	damaged = local.damaged
	faults := []error{err}
	served, refused := map[string]bool{}, map[string]bool{}
	for i := range local.demands {
		d := &local.demands[i]
		taken, err := k.grow(ctx, local, d, wanted[d.Network], due)
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
	for i := range k.planned {
		if d := &k.planned[i]; !refused[d.Network] {
			_, err := k.grow(ctx, local, d, false, due)
			faults = append(faults, err)
		}
	}
	faults = append(faults, k.publish(ctx), k.updateReservations(ctx, due))
	return errors.Join(append(faults, k.shrink(ctx, local))...)
}

// plan reads what the node's networks will demand, and reports whether that has changed.
func (k *Keeper) plan() (changed bool) {
	if k.Planned == nil {
		return false
	}
	before := k.planned
	k.planned = k.Planned()
	return !reflect.DeepEqual(before, k.planned)
}

// unlisted returns the error of a failed list, or nil if this node uses no range.
func (k *Keeper) unlisted(ctx context.Context, wanted map[string]bool, err error) error {
	k.refused = time.Time{}
	if len(wanted) > 0 {
		return err
	}
	used := k.Sole || len(k.planned) > 0
	viewErr := k.Host.Store.View(ctx, func(tx *store.Tx) error {
		blocks, blocksErr := tx.RangeBlocks()
		demands, demandsErr := tx.RangeDemands()
		reservations, reservationsErr := tx.RangeReservations()
		used = used || len(blocks)+len(demands)+len(reservations) > 0
		return errors.Join(blocksErr, demandsErr, reservationsErr)
	})
	if used || viewErr != nil {
		return errors.Join(err, viewErr)
	}
	k.refused = k.clock()
	k.log.Debug("cannot read cluster-wide ranges", "error", err)
	return nil
}
