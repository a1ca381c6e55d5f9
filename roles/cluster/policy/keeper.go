// Package policy is the part of the agent that enforces network policies: it follows a source of policies, answers ADD
// calls, and maintains the kernel's rules. See docs/design.md, "Network policy".
package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store"
)

// Source is where policies come from.
type Source interface {
	// Run follows the source until ctx ends. It calls put with functions that change the Table, and with nil after the
	// first complete reading. The functions run in other goroutines.
	Run(ctx context.Context, put func(func(*netpolicy.Table)))
	// FromFiles reports whether policies are files, and pods are the attachments of this node.
	FromFiles() bool
	// OnNode reports whether a pod of the source may be attached on this node.
	OnNode(p *netpolicy.Pod) bool
	// Publish tells the other nodes which addresses pods of this node have, in place of what it told before. It does not wait.
	Publish(pods map[string]netpolicy.Given)
	// Fetch returns a pod that the source has not sent yet. It may not exist.
	Fetch(ctx context.Context, namespace, name string) (*netpolicy.Pod, error)
}

// Options are the parameters of a Keeper, which closes Host.Net.
type Options struct {
	Host *roles.Host
	// Server is the agent's, which answers ADD calls.
	Server *service.Server
	Source Source
	// From is where Source reads.
	From store.PolicySource
	// Remembered is true if the agent was not asked to enforce policies, and the node's state says that it does. Then no pod is attached
	// until Source was read: its addresses may be others' in the saved policies by now. An off request ends the Keeper.
	Remembered bool
	// KeepEstablished lets connections go on that a policy begins to forbid.
	KeepEstablished bool
	// LogDenied logs packets that policies deny.
	LogDenied bool
}

const (
	// ResyncTime is the interval of complete comparisons with the records and the kernel.
	ResyncTime = time.Minute
	// retryTime is the time until a failed change of the kernel is tried again.
	retryTime = 500 * time.Millisecond
	// checkTime is the interval of looks for what another program deleted and nothing tells of.
	checkTime = 2 * time.Second
	// saveTime is the time between two writings of the saved policies. While policies change one after the other, an agent that ends leaves
	// those of so long ago.
	saveTime = retryTime
)

// Keeper enforces policies. The goroutine of Run owns its fields.
type Keeper struct {
	Options
	filter *podfilter.Filter
	links  *netops.LinkMonitor
	table  *netpolicy.Table
	local  attachments

	changes  chan func(*netpolicy.Table)
	requests chan *request
	// endRequests ends the handlers of requests.
	endRequests func()
	synced      bool
	// isSaving is true while another goroutine writes the saved policies. saved gets the result.
	isSaving bool
	saved    chan saving
	// saveErr is the error of the last writing, and saveEnd when that ended. savedIs identifies the file that it wrote.
	saveErr error
	saveEnd time.Time
	savedIs fs.FileInfo
	// hasSaved is true if this agent or an earlier one has saved policies.
	hasSaved bool
	// early are the ADD calls that wait for the first reading of files, which takes a moment. They go on without an answer if it takes longer.
	early []*request
	// fetching has a value for each fetch of a pod that runs.
	fetching chan struct{}
	// lastRead is when the records were read last.
	lastRead time.Time
	// markErr is why the node could not be marked again.
	markErr error
	// bypass is what keeps packets from the rules.
	bypass  error
	denials denials
	counts  counts
	// fault is the last logged error.
	fault atomic.Pointer[string]
	// faults are those of the table when it changed last.
	faults atomic.Pointer[[]*netpolicy.Fault]
	// known is closed when the policies are known, and off when an off request ends the Keeper.
	known, off chan struct{}
	// closeKnown closes known, the first time that it is called.
	closeKnown func()
}

// Open opens a Keeper in the network namespace of the calling thread, and marks the node as one that enforces policies: an ADD
// that finds no policies waits for the agent.
func Open(ctx context.Context, o Options) (*Keeper, error) {
	filter, err := podfilter.Open(o.Host.Net) //nolint:contextcheck // it listens until Close
	if err != nil {
		return nil, err
	}
	k := &Keeper{
		Options: o, filter: filter, table: netpolicy.NewTable(),
		local: newAttachments(o.Host, o.Source.FromFiles()), changes: make(chan func(*netpolicy.Table)), requests: make(chan *request),
		fetching: make(chan struct{}, maxFetches), saved: make(chan saving, 1),
		known: make(chan struct{}), off: make(chan struct{}),
	}
	k.closeKnown = sync.OnceFunc(func() { close(k.known) })
	k.table.KeepEstablished, k.table.OnNode = o.KeepEstablished, o.Source.OnNode
	k.table.ImplicitNamespaces = o.Source.FromFiles()
	if o.LogDenied {
		k.openDenials(ctx)
	}
	err = k.mark(ctx)
	if err == nil {
		k.links, err = o.Host.Net.OpenPortMonitor(ctx)
	}
	if err != nil {
		if k.denials.log != nil {
			err = errors.Join(err, k.denials.log.Close())
		}
		return nil, errors.Join(err, filter.Close())
	}
	k.endRequests = o.Server.Handle(k.handlers())
	return k, nil
}

// Run enforces policies until ctx ends. The kernel's rules stay after that.
func (k *Keeper) Run(ctx context.Context) {
	defer k.filter.Close()   //nolint:errcheck // it changes nothing
	defer k.links.Close()    //nolint:errcheck // it changes nothing
	defer k.Host.Net.Close() //nolint:errcheck // it changes nothing
	defer k.endRequests()
	defer k.endSaving()
	done := make(chan struct{})
	defer close(done)
	put := func(f func(*netpolicy.Table)) {
		select {
		case k.changes <- f:
		case <-done:
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var following sync.WaitGroup
	if k.denials.log != nil {
		following.Go(func() { k.followDenials(ctx) })
	}
	defer func() { stop(); following.Wait() }() // another Keeper may read the group after this one
	go k.Source.Run(ctx, put)
	resync, check := time.NewTicker(ResyncTime), time.NewTicker(checkTime)
	defer resync.Stop()
	defer check.Stop()
	read, idle := true, false // read: the records
	var again <-chan time.Time
	for {
		if k.synced && !idle {
			// The records have the pods of ADD calls soon, and nothing tells of a record without elements in the kernel.
			read = read || k.local.isWaiting() && time.Since(k.lastRead) >= retryTime
			read = k.reconcile(ctx, read) != nil
		}
		if !k.synced && read && !idle {
			read = k.guard(ctx) != nil
		}
		if !idle { // else the timer runs, however often nothing happens
			again = nil
			if read || k.synced && (k.local.isWaiting() || !k.table.IsSaved) {
				again = time.After(retryTime)
			}
		}
		idle = false
		select {
		case <-ctx.Done():
			return
		case <-k.off:
			k.report(nil)
			return
		case f := <-k.changes:
			read = k.apply(ctx, f) || read
		case r := <-k.requests:
			if !k.isEarly(r) {
				k.answer(ctx, r)
			}
		case d := <-k.denials.packets:
			k.note(d)
			idle = true
		case <-k.filter.Changes():
			read = true
		case <-k.links.Changes():
			read = true
		case <-resync.C:
			k.filter.Recheck()
			read = true
			k.markErr = k.mark(ctx) // another program may have deleted it
		case <-check.C:
			k.endOldDenials()
			k.endLate()
			idle = !k.isSavedGone()
		case <-again:
		case s := <-k.saved:
			idle = !k.noteSaved(ctx, s) && !read
		}
	}
}

// apply makes a change of the source, and those that wait behind it. It reports whether the policies are known since then.
func (k *Keeper) apply(ctx context.Context, f func(*netpolicy.Table)) (isFirst bool) {
	was := k.synced
	k.counts.arrived()
	for {
		if f == nil {
			k.sync()
		} else {
			f(k.table)
		}
		select {
		case f = <-k.changes:
			continue
		default:
		}
		if k.synced != was {
			k.answerEarly(ctx)
		}
		return k.synced != was
	}
}

// sync notes that the source was read once.
func (k *Keeper) sync() {
	if k.synced {
		return
	}
	k.synced = true
	k.closeKnown()
	k.Host.Log.Info("the network policies are known")
}

// Known returns a channel that is closed when the source was read once, or when the Keeper ends by an off request.
func (k *Keeper) Known() <-chan struct{} { return k.known }

// errRemembered is the fault of a Keeper that nobody asked for.
var errRemembered = errors.New("this node enforces network policies, and the agent runs without -policy: add the flag, or run 'cnibox policy off'")

// Unready returns why no pod may be attached, or nil. Every goroutine may call it.
func (k *Keeper) Unready() error {
	if !k.Remembered {
		return nil
	}
	select {
	case <-k.known:
		return nil
	default:
		return fmt.Errorf("%w: their source was not read yet", errRemembered)
	}
}

// remembered returns errRemembered if it applies.
func (k *Keeper) remembered() error {
	if k.Remembered {
		return errRemembered
	}
	return nil
}

// reconcile makes the kernel and the saved policies match the table. With records it first reads the kernel and then the
// attachments.
func (k *Keeper) reconcile(ctx context.Context, records bool) error {
	err := k.ensure(ctx, records)
	faults := k.table.Faults()
	k.faults.Store(&faults)
	k.save()
	if err == nil {
		k.counts.inForce(k.table.Count())
	}
	if k.table.IsSaved && !k.isSaving && k.saveErr == nil {
		k.counts.saved()
	}
	k.Source.Publish(k.table.Given())
	k.report(errors.Join(k.remembered(), err, k.saveErr, k.markErr, k.bypass, k.local.bypassing(k.table)))
	return err
}

func (k *Keeper) ensure(ctx context.Context, records bool) error {
	var errs []error
	if records {
		if err := k.filter.Refresh(ctx); err != nil {
			return err
		}
		if err := k.local.read(ctx); err != nil {
			k.filter.Recheck() // elements of pods that the old records lack must stay
			return err
		}
		k.lastRead = time.Now()
		k.bypass = k.filter.Bypass(ctx)
		for _, bridge := range k.local.bridges() {
			mac, err := k.Host.Net.FilterBridge(ctx, bridge)
			k.local.macs[bridge] = mac
			if err != nil && !errors.Is(err, netops.ErrNotExist) { // a deleted bridge has no packets
				errs = append(errs, err) // the rules of the other pods do not depend on it
			}
		}
	}
	k.local.putInto(k.table)
	if err := k.filter.Ensure(ctx, k.rules()); err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, k.local.named.group(ctx, k.Host.Net))...)
}

// rules returns what the kernel should have.
func (k *Keeper) rules() *podfilter.Ruleset {
	rules := k.table.Ruleset()
	rules.SetLinks(k.local.links())
	return rules
}

// report logs an error that is not the last one.
func (k *Keeper) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == k.Fault() {
		return
	}
	if err != nil {
		k.Host.Log.Warn("network policies are not in force as they should be", "error", err)
	} else {
		k.Host.Log.Warn("network policies are in force")
	}
	k.fault.Store(&text)
}

// Faults returns the faults of objects that are not in force as they are written. Every goroutine may call it.
func (k *Keeper) Faults() []*netpolicy.Fault {
	if all := k.faults.Load(); all != nil {
		return *all
	}
	return nil
}

// Fault returns why policies are not in force as they should be, or "". Every goroutine may call it.
func (k *Keeper) Fault() string {
	if text := k.fault.Load(); text != nil {
		return *text
	}
	return ""
}
