package netops

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// nftQuiet is how long changes are gathered before they are told.
const nftQuiet = 20 * time.Millisecond

// nftMonitor tells when others change one nftables table.
type nftMonitor struct {
	conn    *socket.Conn
	stop    context.CancelFunc
	ended   sync.WaitGroup
	changes *gathered
}

// openNFTMonitor calls changed, and tells later, for changes of the table that
// do not come from the socket own.
func openNFTMonitor(t nftTable, own int, changed func()) (*nftMonitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, kernelError(err, "open nftables socket")
	}
	filter := tableFilter(t, own)
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, kernelError(err, "listen to nftables")
	}
	m := &nftMonitor{changes: gather(nftQuiet)}
	if m.conn, err = socket.New(fd, "nftables"); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() {
		buf := make([]byte, nftMaxReply)
		for {
			heard, err := hear(ctx, m.conn, buf, func(unix.NlMsghdr, []byte) bool { return true })
			if heard {
				changed()
				m.changes.tell()
			}
			if err != nil {
				return
			}
		}
	})
	return m, nil
}

func (m *nftMonitor) close() {
	m.stop()
	m.ended.Wait()
	m.changes.stop()
	_ = m.conn.Close()
}

// tableFilter keeps back what others do to other tables, so that a busy
// firewall wakes nobody up (classic BPF). A notification has the sender's port
// at 12, the family at 16 and, behind a header of 4 bytes, the table's name at 24.
func tableFilter(t nftTable, own int) []unix.SockFilter {
	var port uint32
	if sa, err := unix.Getsockname(own); err == nil {
		if nl, ok := sa.(*unix.SockaddrNetlink); ok {
			port = nl.Pid
		}
	}
	load := func(at uint32, size uint16) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
	}
	name := append([]byte(t.name), 0)
	filter := []unix.SockFilter{
		load(12, unix.BPF_W),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port)), Jt: drop},
		load(16, unix.BPF_B),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(t.family), Jf: drop},
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
