package nft

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// monitorInterval is how long changes are gathered before they are told.
const monitorInterval = 20 * time.Millisecond

// Monitor tells when others change one nftables table.
type Monitor struct {
	events  *nlconn.Listener
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *nlconn.Debouncer
}

// OpenMonitor calls changed, and tells later, for changes of the table that
// do not come from the socket own.
func OpenMonitor(t Table, own *Conn, changed func()) (*Monitor, error) {
	events, err := nlconn.Listen(unix.NETLINK_NETFILTER, "nftables", []int{unix.NFNLGRP_NFTABLES}, tableFilter(t, own))
	if err != nil {
		return nil, err
	}
	m := &Monitor{events: events, changes: nlconn.NewDebouncer(monitorInterval)}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() {
		for {
			heard, err := m.events.Next(ctx, func(unix.NlMsghdr, []byte) bool { return true })
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

// C receives a value after changes.
func (m *Monitor) C() <-chan struct{} { return m.changes.C }

// Close ends it.
func (m *Monitor) Close() {
	m.stop()
	m.ended.Wait()
	m.changes.Stop()
	_ = m.events.Close()
}

// tableFilter keeps back what others do to other tables, so that a busy
// firewall wakes nobody up (classic BPF). A notification has the sender's port
// at 12, the family at 16 and, behind a header of 4 bytes, the table's name at 24.
func tableFilter(t Table, own *Conn) []unix.SockFilter {
	port, _ := own.Port()
	load := func(at uint32, size uint16) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
	}
	name := append([]byte(t.Name), 0)
	filter := []unix.SockFilter{
		load(12, unix.BPF_W),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nlconn.FilterWord(port), Jt: drop},
		load(16, unix.BPF_B),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(t.Family), Jf: drop},
	}
	for at := uint32(24); len(name) > 0; {
		size, n := uint16(unix.BPF_B), 1
		value := uint32(name[0])
		if len(name) >= 4 {
			size, n, value = unix.BPF_W, 4, binary.BigEndian.Uint32(name)
		}
		filter = append(filter, load(at, size), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: drop})
		name, at = name[n:], at+uint32(n)
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
	last := len(filter) - 1
	for i := range filter {
		toDrop := uint8(last - i - 1)
		if filter[i].Jt == drop {
			filter[i].Jt = toDrop
		}
		if filter[i].Jf == drop {
			filter[i].Jf = toDrop
		}
	}
	return filter
}

// drop stands for the filter's last instruction until its place is known.
const drop = 0xff
