package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// applyRuns bounds how often one Apply starts again because the kernel
// changed under it.
const applyRuns = 3

// receiveBuffer is asked for as the receive buffer of the socket for requests.
const receiveBuffer = 4 << 20

// Kernel maintains the routes to other nodes' pods in the kernel, and the tunnel
// device. It remembers what is there: a change costs what it changes. It is
// safe for concurrent use.
type Kernel struct {
	family   uint8
	firstHop uint32
	now      func() time.Time
	probe    netops.Probe

	mu   sync.Mutex
	conn *rtnl.Conn
	// have is what the kernel holds as far as it is ours; unless known it may be
	// out of date. noHops tells that the kernel has no nexthop objects.
	have   *kernelState
	known  bool
	noHops bool
	// wanted is the last device that was asked for, device what became of it,
	// and parent its lower link.
	wanted *VTEP
	device vtepState
	parent *rtnl.Link
	// moved tells that routes, links or addresses may have changed, so that
	// gateways are looked up anew; direct remembers these.
	moved  bool
	direct map[netip.Addr]hop
	peers  *peerIndex
	// order is the peers' in the last spec, contested that some claim the same.
	order     []*peerEntry
	contested bool
	// released is what peers of the last Apply had and do not want any more. It
	// is all that has to be looked for, unless a sweep is due.
	released []claim
	sweep    bool
	nextHop  uint32
	warnings []error
	// labelled is the index of the last device that was seen with our label.
	labelled int
	// mark is the monitor's at the last look at the kernel.
	mark uint32
	// linkFlags are those of links that gateways are on, as far as they were told.
	linkFlags map[int]uint32

	monitor *linkMonitor
	index   atomic.Int64
}

// Open opens an overlay of one address family in the namespace of the
// process. It changes nothing before Apply.
func Open(n *netops.Net, opt Options) (*Kernel, error) {
	o := &Kernel{
		family: unix.AF_INET, firstHop: Nexthops4, now: opt.Now, probe: n.Options().Probe,
		noHops: opt.NoNexthops, direct: map[netip.Addr]hop{}, peers: newPeerIndex(0),
		linkFlags: map[int]uint32{}, have: newKernelState(),
	}
	if opt.IPv6 {
		o.family, o.firstHop = unix.AF_INET6, Nexthops6
	}
	if o.now == nil {
		o.now = time.Now
	}
	var err error
	o.monitor, err = openMonitor(o)
	if err != nil {
		return nil, err
	}
	if err := o.connect(); err != nil {
		o.monitor.close()
		return nil, err
	}
	return o, nil
}

// connect opens the socket for requests anew: after a failure answers to old
// ones may still come in.
func (o *Kernel) connect() error {
	if o.conn != nil {
		_ = o.conn.Close()
	}
	o.conn = nil
	c, err := rtnl.Open()
	if err != nil {
		return err
	}
	c.GrowReceive(receiveBuffer)
	o.conn = c
	o.monitor.events.Ignore(c.Conn)
	return nil
}

// Close closes the sockets and leaves the kernel as it is.
func (o *Kernel) Close() error {
	o.monitor.close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return nil
	}
	err := o.conn.Close()
	o.conn = nil
	return err
}

// Changes is told when the kernel is no longer as Apply left it, or when the
// way to a peer may have changed: call Apply again. Changes that come together
// are told once.
func (o *Kernel) Changes() <-chan struct{} { return o.monitor.changes.C }

// Apply makes the kernel as the spec says. The first call, and one after a
// disturbance, compares with the kernel, others with what is remembered. A
// refused peer is no error: Peers and the report tell, and it is tried again
// when its time has come, as something calls Apply then. After an error the
// next call begins with a look at the kernel.
func (o *Kernel) Apply(ctx context.Context, spec Spec) (Report, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r Report
	var err error
	start := time.Now()
	defer func() { o.monitor.took(time.Since(start), r.Dumped) }()
	for range applyRuns {
		if err = o.apply(ctx, &spec, &r); err == nil {
			o.summarize(&r)
			return r, nil
		}
		o.known = false
		if !errors.Is(err, errLinkGone) || ctx.Err() != nil {
			break
		}
	}
	o.summarize(&r)
	if again := o.connect(); again != nil {
		err = errors.Join(err, again)
	}
	return r, err
}

func (o *Kernel) apply(ctx context.Context, spec *Spec, r *Report) error {
	if o.conn == nil {
		return fmt.Errorf("overlay: %w: it has no socket", nlconn.ErrInvalid)
	}
	if err := o.ensureDevice(ctx, spec.Device); err != nil {
		return err
	}
	if !o.known {
		if o.wanted == nil {
			o.mark = o.monitor.mark()
		}
		have, err := o.read(ctx, o.device.Index)
		if err != nil {
			return err
		}
		o.forward()
		o.have, o.known, r.Dumped = have, true, true
		o.sweep = true
		for _, p := range o.order {
			p.done = false
			if p.failures == 1 { // by what was changed meanwhile, for all we know
				p.retryAt = time.Time{}
			}
		}
	}
	if err := o.want(ctx, spec.Peers); err != nil {
		return err
	}
	w := &opWriter{Kernel: o}
	defer func() { r.Writes += w.done }()
	if err := o.program(ctx, w, o.now()); err != nil {
		return err
	}
	if !spec.Prune {
		o.sweep, o.released = true, nil
		return nil
	}
	if err := o.prune(ctx, w); err != nil {
		return err
	}
	if r.Dumped {
		return o.pruneDevices(ctx)
	}
	return nil
}

// ensureDevice makes the device as wanted, unless it is known to be so.
func (o *Kernel) ensureDevice(ctx context.Context, v *VTEP) error {
	if o.known && (v == nil) == (o.wanted == nil) && (v == nil || *v == *o.wanted) {
		return nil
	}
	before := o.device.Index
	o.known = false
	o.device, o.wanted, o.parent, o.warnings = vtepState{}, nil, nil, nil
	if v != nil {
		if err := v.validate(o.family == unix.AF_INET6); err != nil {
			return err
		}
		wanted := *v
		// Heard of from now on, whatever comes of it.
		o.wanted = &wanted
		var err error
		o.device, o.warnings, err = o.ensureVTEP(ctx, v)
		if err != nil {
			o.device = vtepState{}
			return err
		}
	}
	o.index.Store(int64(o.device.Index))
	if o.device.Index != before {
		o.moved = true
	}
	return nil
}

func (o *Kernel) summarize(r *Report) {
	r.MAC, r.Warnings = o.device.MAC.String(), o.warnings
	r.Wanted, r.Programmed, r.RetryAt = len(o.order), 0, time.Time{}
	for _, p := range o.order {
		if p.state == Programmed {
			r.Programmed++
		}
		if !p.retryAt.IsZero() && (r.RetryAt.IsZero() || p.retryAt.Before(r.RetryAt)) {
			r.RetryAt = p.retryAt
		}
	}
}
