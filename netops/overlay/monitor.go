package overlay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// minInterval and maxInterval limit the interval in which changes are
	// combined into one notification. The interval is longer if reading the
	// kernel takes longer, so that frequent changes do not make the process read
	// the kernel all the time.
	minInterval = 20 * time.Millisecond
	maxInterval = 500 * time.Millisecond
	// monitorBuffer is the size of the receive buffer. It holds the notifications
	// that arrive while a large overlay is programmed.
	monitorBuffer = 16 << 20
	// monitorQueue limits the notifications that wait for the end of an Apply.
	monitorQueue = 1 << 16
)

// event is one notification of the kernel: a link, address, neighbour, nexthop or
// route that was made, changed or deleted, or a link's forwarding setting.
type event struct {
	// after is the last mark that arrived before the event.
	after uint32
	del   bool
	body  any // *rtnl.Link, rtnl.Addr, neighState, rtnl.Nexthop, routeState, forwardingState
}

// linkMonitor receives the notifications of links, addresses, neighbours,
// nexthops and routes, and evaluates whether they disturb the overlay.
type linkMonitor struct {
	o       *Kernel
	events  *nlconn.Listener
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *nlconn.Debouncer
	wake    chan struct{}

	mu    sync.Mutex
	queue []event
	// marked is the last mark that was sent. passed is the last mark that
	// arrived.
	marked, passed uint32
	// lost reports whether notifications were dropped, so that the kernel's state
	// is unknown.
	lost bool
}

func openMonitor(o *Kernel) (*linkMonitor, error) {
	m := &linkMonitor{o: o, changes: nlconn.NewDebouncer(minInterval), wake: make(chan struct{}, 1)}
	groups := []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_NETCONF}
	if o.family == unix.AF_INET6 {
		groups = append(groups[:3], unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_NETCONF)
	}
	var err error
	m.events, err = nlconn.Listen(unix.NETLINK_ROUTE, "rtnetlink", groups)
	if err != nil {
		return nil, err
	}
	m.events.SetReceiveBuffer(monitorBuffer)
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() { m.listen(ctx) })
	m.ended.Go(func() { m.evaluate(ctx) })
	return m, nil
}

// mark separates earlier from later notifications. It sends an empty request,
// whose acknowledgement arrives after all notifications so far. Notifications
// before it are older than what the caller reads after this call.
func (m *linkMonitor) mark() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.events.Mark(m.marked+1) == nil {
		m.marked++
	}
	return m.marked
}

func (m *linkMonitor) close() {
	m.stop()
	m.ended.Wait()
	_ = m.events.Close()
	m.changes.Stop()
}

// listen queues notifications until the context ends.
func (m *linkMonitor) listen(ctx context.Context) {
	for {
		var events []event
		lost, err := m.events.Next(ctx, func(h unix.NlMsghdr, data []byte) bool {
			if h.Type == unix.NLMSG_ERROR {
				m.recordMark(h.Seq)
			} else if e, ok := m.decode(h.Type, data); ok {
				events = append(events, e)
			}
			return false
		})
		m.push(events, lost)
		if err != nil {
			return // the context ended, or the socket was closed
		}
	}
}

// recordMark records a mark that arrived.
func (m *linkMonitor) recordMark(mark uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed = mark
}

// push queues events for evaluate.
func (m *linkMonitor) push(events []event, lost bool) {
	if len(events) == 0 && !lost {
		return
	}
	m.mu.Lock()
	m.lost = m.lost || lost || len(m.queue) > monitorQueue
	if m.lost {
		events, m.queue, m.passed = nil, nil, m.marked // the mark may be lost too
	}
	for i := range events {
		events[i].after = m.passed
	}
	m.queue = append(m.queue, events...)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// decode reads a notification. ok is false if the notification does not concern
// the overlay or cannot be read.
func (m *linkMonitor) decode(kind uint16, data []byte) (e event, ok bool) {
	var err error
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		e.body, ok, err = parseLinkEvent(data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		e.body, ok, err = asEvent(rtnl.ParseAddr(data))
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		var n neighState
		n, ok, err = parseNeigh(data)
		e.body, ok = n, ok && int64(n.link) == m.o.index.Load()
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		var n rtnl.Nexthop
		n, err = rtnl.ParseNexthop(data)
		e.body, ok = n, m.o.isOwnHop(n.ID)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		e.body, ok, err = asEvent(parseRoute(data))
	case unix.RTM_NEWNETCONF:
		e.body, ok, err = asEvent(parseForwarding(data))
	}
	switch kind {
	case unix.RTM_DELLINK, unix.RTM_DELADDR, unix.RTM_DELNEIGH, unix.RTM_DELNEXTHOP, unix.RTM_DELROUTE:
		e.del = true
	}
	return e, ok && err == nil
}

func asEvent[T any](v T, ok bool, err error) (any, bool, error) { return v, ok, err }

// parseLinkEvent reads a link of any kind. ok is false for a bridge's messages
// about its ports.
func parseLinkEvent(data []byte) (any, bool, error) {
	if len(data) > 0 && data[0] == unix.AF_BRIDGE {
		return nil, false, nil
	}
	l, err := rtnl.ParseLink(data)
	if err != nil {
		return nil, false, fmt.Errorf("link notification: %w", err)
	}
	return l, true, nil
}

// evaluate compares queued events with the remembered state. It waits for the end of
// an Apply.
func (m *linkMonitor) evaluate(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.o.mu.Lock()
		m.mu.Lock()
		events, lost := m.queue, m.lost
		m.queue, m.lost = nil, false
		m.mu.Unlock()
		if lost {
			m.o.losses++
		}
		disturbed := m.o.disturbedBy(events, lost)
		m.o.mu.Unlock()
		if disturbed {
			m.changes.Notify()
		}
	}
}

// adjustInterval sets the notification interval to twice the duration of an Apply that read
// the kernel, within minInterval and maxInterval.
func (m *linkMonitor) adjustInterval(d time.Duration, dumped bool) {
	if !dumped {
		return
	}
	m.changes.SetInterval(min(max(2*d, minInterval), maxInterval))
}
