package netops

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// linkQuiet is the interval in which changes are combined into one notification.
const linkQuiet = 50 * time.Millisecond

// LinkMonitor notifies when the result of HostLinks may have changed: a link's name, MTU
// or state, an address, or a default route.
type LinkMonitor struct {
	events  *nlconn.Listener
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *nlconn.Debouncer
	// isRelevant reports whether a notification is a change.
	isRelevant func(kind uint16, data []byte) bool
}

// links are the last known states of links, by index.
type links map[int]seenLink

type seenLink struct {
	name  string
	mtu   int
	flags uint32
}

// OpenLinkMonitor starts a LinkMonitor in the host's namespace.
func (n *Net) OpenLinkMonitor() (*LinkMonitor, error) {
	m, err := n.openMonitor(links{}.isRelevant, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, err
	}
	m.events.OnlyDefaultRoutes()
	m.start()
	return m, nil
}

// openMonitor begins to listen to groups of notifications. start begins to read them.
func (n *Net) openMonitor(isRelevant func(kind uint16, data []byte) bool, groups ...int) (*LinkMonitor, error) {
	m := &LinkMonitor{changes: nlconn.NewDebouncer(linkQuiet), isRelevant: isRelevant}
	err := n.host.visit(func() (err error) {
		m.events, err = nlconn.Listen(unix.NETLINK_ROUTE, "rtnetlink", groups)
		return err
	})
	return m, err
}

func (m *LinkMonitor) start() {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() { m.listen(ctx) })
}

// Changes returns a channel that receives one value for all changes within 50 ms. The
// receiver must call HostLinks again.
func (m *LinkMonitor) Changes() <-chan struct{} { return m.changes.C }

// Close stops the monitor and closes its socket.
func (m *LinkMonitor) Close() error {
	m.stop()
	m.ended.Wait()
	m.changes.Stop()
	return m.events.Close()
}

func (m *LinkMonitor) listen(ctx context.Context) {
	for {
		changed, err := m.events.Next(ctx, func(h unix.NlMsghdr, data []byte) bool { return m.isRelevant(h.Type, data) })
		if changed {
			m.changes.Notify()
		}
		if err != nil {
			return
		}
	}
}

// isRelevant reports whether a notification may change the result of HostLinks.
func (s links) isRelevant(kind uint16, data []byte) bool {
	switch kind {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		// data[1] is the prefix length and data[4] the table of struct rtmsg. Only default
		// routes of the main table count.
		return len(data) >= unix.SizeofRtMsg && data[1] == 0 && data[4] == unix.RT_TABLE_MAIN
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) > 0 && data[0] == unix.AF_BRIDGE {
			return false // a bridge's notification about a port
		}
		l, err := rtnl.ParseLink(data)
		if err != nil {
			return false
		}
		now := seenLink{l.Name, l.MTU, l.Flags & (unix.IFF_UP | unix.IFF_RUNNING)}
		if kind == unix.RTM_DELLINK {
			delete(s, l.Index)
			return true
		}
		was, known := s[l.Index]
		s[l.Index] = now
		return !known || was != now
	}
	return false
}

// operationPatience limits the wait of AwaitOperation. The kernel takes a fraction of a
// millisecond, and longer on a busy node.
const operationPatience = time.Second

// AwaitOperation waits until the veth pairs that the changes made, and their bridges, are in
// operation (IF_OPER_UP). After both ends were set up, the kernel brings the first end and
// the bridge into operation in a worker, and drops their packets until then. The peer, which
// is set up last, is in operation at once. A pair with an end that the changes leave down is
// not waited for, nor is a bridge with STP, which may take 30 s. A link that was deleted
// meanwhile is not an error.
//
// It also waits until the IPv6 addresses that the changes added to links that are up can
// receive packets. Another worker of the kernel adds their local routes, together with
// duplicate address detection (addrconf_dad_work), and until then the kernel refuses their
// packets. An address with duplicate address detection is not waited for.
//
// Usually this costs one write, and one for each IPv6 address. Since Linux 6.8 the first one
// makes the kernel do the worker's job.
func (n *Net) AwaitOperation(ctx context.Context, changes []Change, container *Namespace) error {
	up := map[linkRef]bool{}
	for _, c := range changes {
		if l, ok := c.Do.Object.(*Link); ok && l.Up {
			up[l.ref()] = true
		}
	}
	s := n.session(container)
	for _, c := range changes {
		if a, ok := c.Do.Object.(*Addr); ok && c.Do.Verb == VerbAdd && a.Address.Addr().Is6() && !a.DAD && up[linkRef{a.In, a.Link}] {
			if err := n.awaitAddress(ctx, s, a); err != nil {
				return err
			}
		}
		l, ok := c.Do.Object.(*Link)
		if !ok || c.Do.Verb != VerbAdd || l.Peer == nil || !up[l.ref()] {
			continue
		}
		if p := l.Peer; p.Up || up[linkRef{p.In, p.Name}] {
			if err := s.awaitOperation(ctx, l.In, l.Name, l.Master, p.Master); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitOperation waits for links of one namespace; empty names are ignored. A bridge comes
// after its port.
func (s *session) awaitOperation(ctx context.Context, p Place, names ...string) error {
	c, err := s.conn(p)
	if err != nil {
		return err
	}
	var late []*rtnl.Link
	var broken error
	var msgs []nlconn.Message
	for _, name := range names {
		if name == "" {
			continue
		}
		m := rtnl.LinkQuery(0)
		m.Text(unix.IFLA_IFNAME, name)
		m.Echo = func(data []byte) {
			l, err := rtnl.ParseLink(data)
			if err != nil {
				broken = err
			} else if l.Oper != rtnl.OperUp && l.STP == 0 {
				late = append(late, l)
			}
		}
		msgs = append(msgs, m)
	}
	results, err := c.Exchange(ctx, msgs)
	for _, r := range results {
		if r != nil && !nlconn.IsAbsent(r) {
			broken = r
		}
	}
	if err := errors.Join(err, broken); err != nil {
		return nlconn.Explain(err, "read whether links are in operation")
	}
	for _, l := range late {
		if err := s.awaitLink(ctx, p, l.Index); err != nil {
			return fmt.Errorf("wait until link %q is in operation: %w", l.Name, err)
		}
	}
	return nil
}

// awaitLink waits for one link.
func (s *session) awaitLink(ctx context.Context, p Place, index int) error {
	ctx, cancel := context.WithTimeout(ctx, operationPatience)
	defer cancel()
	ns, err := s.namespace(p)
	if err != nil {
		return err
	}
	c, err := ns.socket()
	if err != nil {
		return err
	}
	return ns.await(ctx, unix.RTNLGRP_LINK, func(ctx context.Context) (bool, error) {
		now, err := c.LinkByIndex(ctx, index)
		if errors.Is(err, ErrNotExist) {
			return true, nil
		}
		return err == nil && now.Oper == rtnl.OperUp, err
	})
}

// awaitAddress waits for one IPv6 address.
func (n *Net) awaitAddress(ctx context.Context, s *session, a *Addr) error {
	ns, err := s.namespace(a.In)
	if err != nil {
		return err
	}
	isLocal := func(ctx context.Context) (bool, error) {
		w, err := n.Way(ctx, ns, Packet{To: a.Address.Addr()})
		if w.Local || err != nil && !errors.Is(err, ErrNotExist) {
			return w.Local, err
		}
		_, err = n.Link(ctx, ns, a.Link)
		if errors.Is(err, ErrNotExist) {
			return true, nil
		}
		return false, err
	}
	is, err := isLocal(ctx)
	if is || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, operationPatience)
	defer cancel()
	if err := ns.await(ctx, unix.RTNLGRP_IPV6_ROUTE, isLocal); err != nil {
		return fmt.Errorf("wait until address %s of link %q is in operation: %w", a.Address, a.Link, err)
	}
	return nil
}

// await waits until done returns true. It calls done after each notification of the
// multicast group.
func (ns *Namespace) await(ctx context.Context, group int, done func(context.Context) (bool, error)) error {
	var notifications *rtnl.Conn
	err := ns.visit(func() (err error) {
		if notifications, err = rtnl.Open(); err != nil {
			return err
		}
		return notifications.Join(group)
	})
	if notifications != nil {
		defer func() { _ = notifications.Close() }()
	}
	for err == nil {
		var is bool
		if is, err = done(ctx); is || err != nil {
			return err
		}
		err = notifications.Receive(ctx, func(unix.NlMsghdr, []byte) {})
		if errors.Is(err, unix.ENOBUFS) { // notifications were lost: check again
			err = nil
		}
	}
	return err
}
