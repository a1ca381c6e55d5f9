package nft

import (
	"bytes"
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// monitorInterval is the time in which changes are combined into one
// notification.
const monitorInterval = 20 * time.Millisecond

// Monitor notifies of changes that other sockets make to one nftables table.
type Monitor struct {
	events  *nlconn.Listener
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *nlconn.Debouncer
}

// OpenMonitor watches a table for changes that do not come from the socket own.
// It calls changed at once for every notification, and sends a combined
// notification to C later.
func OpenMonitor(t Table, own *Conn, changed func()) (*Monitor, error) {
	events, err := nlconn.Listen(unix.NETLINK_NETFILTER, "nftables", []int{unix.NFNLGRP_NFTABLES})
	if err != nil {
		return nil, err
	}
	events.Ignore(own.Conn)
	m := &Monitor{events: events, changes: nlconn.NewDebouncer(monitorInterval)}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() {
		for {
			heard, err := m.events.Next(ctx, func(_ unix.NlMsghdr, data []byte) bool { return t.concerns(data) })
			if heard {
				changed()
				m.changes.Notify()
			}
			if err != nil {
				return
			}
		}
	})
	return m, nil
}

// C returns the channel that receives a value after changes.
func (m *Monitor) C() <-chan struct{} { return m.changes.C }

// Close stops the monitor and closes its socket.
func (m *Monitor) Close() {
	m.stop()
	m.ended.Wait()
	m.changes.Stop()
	_ = m.events.Close()
}

// concerns reports whether a notification is about the table: the first attribute of each is the
// table's name (NFTA_TABLE_NAME and others). The kernel puts the notifications of a transaction into
// few datagrams, so a filter of the socket, which sees the first one of a datagram, cannot decide this:
// with 'nft flush ruleset' that may be of another program's table.
func (t *Table) concerns(data []byte) bool {
	const header = 4 + unix.SizeofNlAttr // struct nfgenmsg and the attribute's header
	return len(data) >= header && data[0] == t.Family && bytes.HasPrefix(data[header:], append([]byte(t.Name), 0))
}
