package overlay

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// applyRuns limits how often one Apply starts again because the kernel changed
// during it.
const applyRuns = 3

// receiveBuffer is the size of the receive buffer of the socket for requests.
const receiveBuffer = 4 << 20

// Kernel maintains the routes to other nodes' pods in the kernel, and the tunnel
// device. It remembers the kernel's state, so that the cost of Apply depends only
// on what changes. It is safe for concurrent use.
type Kernel struct {
	family   uint8
	firstHop uint32
	now      func() time.Time

	mu sync.Mutex
	// net makes the device. conn is its socket, for the objects of peers. It is nil after a failure.
	net  *netops.Net
	conn *rtnl.Conn
	// have is the overlay's state in the kernel. It may be outdated unless known
	// is set. noHops reports whether the kernel lacks nexthop objects.
	have   *kernelState
	known  bool
	noHops bool
	// wanted is the device of the last spec, device is its state in the kernel,
	// and parent is its lower link.
	wanted *VTEP
	device rtnl.Link
	parent *rtnl.Link
	// moved reports whether routes, links or addresses may have changed, so that
	// gateways must be looked up again. direct has the results of these lookups.
	moved  bool
	direct map[netip.Addr]hop
	peers  *peerIndex
	// order has the peers in the order of the last spec, which was the list with the number lists.
	order []*peerEntry
	lists uint64
	// network is the pod network of the last spec, and nodes are its nodes. detoured reports whether a notification changed
	// have.foreign since the last Apply.
	network  netip.Prefix
	nodes    map[netip.Prefix]netip.Addr
	detoured bool
	// disturbed reports whether a notification or Recheck led to the next read of the kernel.
	// repaired and firstRepair count the writes of an Apply after that which restore what before has, the
	// state before that read. refused counts its refusals. newDevice reports whether the spec has another device.
	disturbed   bool
	before      *kernelState
	newDevice   bool
	repaired    map[string]int
	firstRepair string
	refused     map[syscall.Errno]int
	// writes counts the objects that this Apply made, changed or deleted.
	writes int
	// wg is the socket for the WireGuard device, nil if it is not open. ownKey is the device's public
	// key.
	wg     *wgConn
	ownKey Key
	// hasDetours reports whether the last Apply found detours.
	hasDetours bool
	// keepGuard is true during RemoveToGuard.
	keepGuard bool
	// released has the objects that peers of the last Apply do not want any more.
	// Only these must be removed, unless sweep is set.
	released []peerObjects
	sweep    bool
	nextHop  uint32
	warnings []error
	// labelled is the index of the last device that had the alias deviceAlias.
	labelled int
	// mark is the monitor's mark at the last read of the kernel.
	mark uint32
	// linkFlags are the flags of the links of gateways, as far as notifications
	// reported them.
	linkFlags map[int]uint32
	// losses counts how often notifications were lost.
	losses int

	monitor *linkMonitor
	index   atomic.Int64
}

// Open opens an overlay of one address family in the network namespace of the
// process. It does not change the kernel before Apply.
func Open(n *netops.Net, opt Options) (*Kernel, error) {
	o := &Kernel{
		family: unix.AF_INET, firstHop: Nexthops4, now: opt.Now, net: n,
		noHops: opt.NoNexthops, direct: map[netip.Addr]hop{}, peers: newPeerIndex(0),
		linkFlags: map[int]uint32{}, have: newKernelState(), repaired: map[string]int{}, refused: map[syscall.Errno]int{},
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

// connect opens new sockets. After a failure the old ones may still receive answers
// to earlier requests.
func (o *Kernel) connect() error {
	_ = o.disconnect()
	o.net = o.net.Clone()
	conn, err := o.net.Rtnetlink()
	if err != nil {
		return err
	}
	conn.GrowReceive(receiveBuffer)
	o.conn = conn
	o.monitor.events.Ignore(conn.Conn)
	return nil
}

// disconnect closes the sockets for requests.
func (o *Kernel) disconnect() error {
	o.closeWG()
	if o.conn == nil {
		return nil
	}
	o.conn = nil
	return o.net.Close()
}

// Close closes the sockets. It does not change the kernel.
func (o *Kernel) Close() error {
	o.monitor.close()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.disconnect()
}

// Changes returns a channel that receives a value when the kernel differs from
// the result of Apply, or when the route to a peer may have changed. The caller
// should call Apply again. Changes within an interval are combined into one
// value.
func (o *Kernel) Changes() <-chan struct{} { return o.monitor.changes.C }

// Recheck makes the next Apply read the kernel instead of using the remembered
// state. It finds differences that no notification reported.
func (o *Kernel) Recheck() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.moved, o.disturbed = false, true, true
}

// Apply makes the kernel match the spec. The first call, and a call after a
// disturbance, reads the kernel. Other calls use the remembered state. A refused
// peer is not an error: Peers and the report contain it. A call after the peer's
// RetryAt tries it again. After an error the next call reads the kernel.
func (o *Kernel) Apply(ctx context.Context, spec Spec) (Report, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r Report
	var err error
	start := time.Now()
	defer func() { o.monitor.adjustInterval(time.Since(start), r.Dumped) }()
	o.repaired, o.firstRepair, o.refused, o.writes = map[string]int{}, "", map[syscall.Errno]int{}, 0
	o.before, o.newDevice = nil, false
	defer func() { o.before = nil }()
	for range applyRuns {
		if err = o.apply(ctx, &spec, &r); err == nil {
			o.summarize(&r)
			if o.disturbed {
				r.Repaired, r.FirstRepair, o.disturbed = o.repaired, o.firstRepair, false
			}
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
	if o.conn == nil { // the last Apply could not open a new one
		if err := o.connect(); err != nil {
			return err
		}
	}
	o.nodes = spec.Nodes
	if o.network != spec.Network {
		o.network, o.known = spec.Network, false
	}
	if v := spec.Device; v != nil && v.isWireGuard() && (!o.known || !o.isWireGuard()) {
		if err := o.ensureGuard(ctx, o.network); err != nil {
			return err
		}
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
		o.enableForwarding(ctx)
		o.before = cmp.Or(o.before, o.have)
		o.have, o.known, r.Dumped = have, true, true
		o.sweep = true
		for _, p := range o.order {
			p.done = false
			if p.failures == 1 { // the change that was noticed may have caused the failure
				p.retryAt = time.Time{}
			}
		}
	}
	if err := o.setPeers(ctx, spec.Peers); err != nil {
		return err
	}
	w := o.writer()
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

// ensureDevice makes the device match v, unless it is known to match.
func (o *Kernel) ensureDevice(ctx context.Context, v *VTEP) error {
	if o.known && (v == nil) == (o.wanted == nil) && (v == nil || *v == *o.wanted) {
		return nil
	}
	before := o.device.Index
	o.known, o.newDevice = false, o.newDevice || (v == nil) != (o.wanted == nil) || v != nil && *v != *o.wanted
	o.device, o.wanted, o.parent, o.warnings = rtnl.Link{}, nil, nil, nil
	if v != nil {
		if err := v.validate(o.family == unix.AF_INET6); err != nil {
			return err
		}
		wanted := *v
		// Set wanted first: events of the device count even if the next step
		// fails.
		o.wanted = &wanted
		var err error
		o.device, o.warnings, err = o.ensureVTEP(ctx, v)
		if err != nil {
			o.device = rtnl.Link{}
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
	r.MAC, r.Warnings, r.Losses = o.device.MAC.String(), o.warnings, o.losses
	r.Writes = o.writes
	r.Wanted, r.Programmed, r.Failed, r.RetryAt, r.Refused = len(o.order), 0, 0, time.Time{}, o.refused
	r.Missing = nil
	r.Detours, r.Links, o.detoured = o.detours(), o.peerLinks(), false
	o.hasDetours = len(r.Detours) > 0
	for _, p := range o.order {
		switch p.state {
		case Programmed:
			r.Programmed++
		case Failed:
			r.Failed++
		case Pending:
		}
		if p.state != Programmed {
			r.Missing = append(r.Missing, p.Name)
		}
		if !p.retryAt.IsZero() && (r.RetryAt.IsZero() || p.retryAt.Before(r.RetryAt)) {
			r.RetryAt = p.retryAt
		}
	}
}

// detours returns other programs' routes that the kernel prefers to the routes of peers, in order.
func (o *Kernel) detours() (all []Detour) {
	for r := range o.have.foreign {
		p := o.peers.containing(r.dst)
		switch {
		case o.isWireGuard() && (r.dst != o.network || r.priority < o.priority()):
			// All routes to a part of the network have precedence over the device's, also a
			// route to several peers.
			for i := 0; p == nil && i < len(o.order) && r.dst.Bits() <= o.order[i].Subnet.Bits(); i++ {
				if o.order[i].invalid == nil && r.dst.Contains(o.order[i].Subnet.Addr()) {
					p = o.order[i]
				}
			}
		case p != nil && r.dst == p.Subnet && r.priority >= o.priority():
			p = nil
		}
		if p != nil {
			all = append(all, Detour{r.dst, p.Name})
		}
	}
	sorting.Func(all, func(a, b Detour) int { return netip.Prefix.Compare(a.Route, b.Route) })
	return all
}

// countRepair counts a write for Report.Repaired.
func (o *Kernel) countRepair(kind string, what func() string) {
	if len(o.repaired) == 0 {
		o.firstRepair = what()
	}
	o.repaired[kind]++
}
