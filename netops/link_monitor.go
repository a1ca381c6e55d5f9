package netops

import (
	"context"
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
	// seen is the last known state of each link, by index.
	seen map[int]seenLink
}

type seenLink struct {
	name  string
	mtu   int
	flags uint32
}

// OpenLinkMonitor starts a LinkMonitor in the host's namespace.
func (n *Net) OpenLinkMonitor() (*LinkMonitor, error) {
	m := &LinkMonitor{changes: nlconn.NewDebouncer(linkQuiet), seen: map[int]seenLink{}}
	err := n.host.visit(func() (err error) {
		m.events, err = nlconn.Listen(unix.NETLINK_ROUTE, "rtnetlink", []int{
			unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	m.events.OnlyDefaultRoutes()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() { m.listen(ctx) })
	return m, nil
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
func (m *LinkMonitor) isRelevant(kind uint16, data []byte) bool {
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
			delete(m.seen, l.Index)
			return true
		}
		was, known := m.seen[l.Index]
		m.seen[l.Index] = now
		return !known || was != now
	}
	return false
}
