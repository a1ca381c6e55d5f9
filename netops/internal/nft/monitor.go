package nft

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// monitorInterval is the time in which changes are combined into one
// notification.
const monitorInterval = 20 * time.Millisecond

// Watched is what a Monitor watches: a table, or with Chain only that chain and the existence of its table.
type Watched struct {
	Table
	Chain string
	// With Sets, only the elements of the sets whose name begins with it are watched. With ButSets, these elements are not
	// watched, and everything else of the table is.
	Sets, ButSets string
}

// Monitor notifies of changes that other sockets make to nftables.
type Monitor struct {
	events  *nlconn.Listener
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *nlconn.Debouncer
}

// OpenMonitor watches for changes that do not come from the client's socket, in its namespace. It calls
// changed at once with what changed, and sends a combined notification to C later.
// If notifications were lost, everything may have changed.
func OpenMonitor(own *Client, changed func(Watched), watched ...Watched) (*Monitor, error) {
	conn, err := own.Conn()
	if err != nil {
		return nil, err
	}
	events, err := nlconn.Listen(unix.NETLINK_NETFILTER, "nftables", []int{unix.NFNLGRP_NFTABLES})
	if err != nil {
		return nil, err
	}
	events.Ignore(conn)
	m := &Monitor{events: events, changes: nlconn.NewDebouncer(monitorInterval)}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() {
		for {
			lost := true
			heard, err := m.events.Next(ctx, func(h unix.NlMsghdr, data []byte) (found bool) {
				for _, w := range watched {
					if w.concerns(h.Type, data) {
						found, lost = true, false
						changed(w)
					}
				}
				return found
			})
			for i := 0; heard && lost && i < len(watched); i++ {
				changed(watched[i])
			}
			if heard {
				m.Notify()
			}
			if err != nil {
				return
			}
		}
	})
	return m, nil
}

// Changes returns the channel that receives one value for all changes within 20 ms.
func (m *Monitor) Changes() <-chan struct{} { return m.changes.C }

// Notify announces a change that the caller found in another way.
func (m *Monitor) Notify() { m.changes.Notify() }

// Close stops the monitor and closes its socket.
func (m *Monitor) Close() {
	m.stop()
	m.ended.Wait()
	m.changes.Stop()
	_ = m.events.Close()
}

// concerns reports whether a notification is about w. The first attribute of each is the table's name
// (NFTA_TABLE_NAME and others); that of a rule or a chain also has the name of the chain. The kernel puts the
// notifications of a transaction into few datagrams, so a filter of the socket, which sees the first one of a datagram,
// cannot decide this: with 'nft flush ruleset' that may be of another program's table.
func (w *Watched) concerns(kind uint16, data []byte) bool {
	const header = 4 + unix.SizeofNlAttr // struct nfgenmsg and the attribute's header
	end := header + len(w.Name)
	if len(data) <= end || data[0] != w.Family || string(data[header:end]) != w.Name || data[end] != 0 {
		return false
	}
	if prefix := w.Sets + w.ButSets; prefix != "" {
		elements := kind&0xff == unix.NFT_MSG_NEWSETELEM || kind&0xff == unix.NFT_MSG_DELSETELEM
		set, err := nlconn.Find(data[4:], unix.NFTA_SET_ELEM_LIST_SET)
		return (w.Sets != "") == (err == nil && elements && strings.HasPrefix(nlconn.Text(set), prefix))
	}
	var chain uint16
	switch kind & 0xff {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		return true
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = unix.NFTA_CHAIN_NAME
	default:
		return w.Chain == ""
	}
	if w.Chain == "" {
		return true
	}
	name, err := nlconn.Find(data[4:], chain)
	return err == nil && nlconn.Text(name) == w.Chain
}
