package nft

import (
	"context"
	"encoding/binary"
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

// C returns the channel that receives a value after changes.
func (m *Monitor) C() <-chan struct{} { return m.changes.C }

// Close stops the monitor and closes its socket.
func (m *Monitor) Close() {
	m.stop()
	m.ended.Wait()
	m.changes.Stop()
	_ = m.events.Close()
}

// tableFilter returns a classic BPF filter for notifications. It drops the
// changes that own makes and the changes of other tables, so that a busy firewall
// does not wake the process. In a notification the sender's port ID is at offset
// 12, the family at offset 16, and the table's name at offset 24, after an
// attribute header of 4 bytes.
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

// drop is a placeholder for the offset of the filter's last instruction.
const drop = 0xff
