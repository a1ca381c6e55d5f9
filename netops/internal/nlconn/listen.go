package nlconn

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Listener is a netlink socket that receives notifications.
type Listener struct {
	socket Socket
	fd     int
	buf    []byte
	// dropping is true from an overrun until the receive queue is empty. The kernel
	// drops every message meanwhile, but reports only the first one.
	dropping bool
}

// Listen opens a socket of one protocol (NETLINK_*) in the calling thread's
// network namespace. The socket receives the notifications of groups.
func Listen(protocol int, name string, groups []int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, Explain(err, "open "+name+" socket")
	}
	l := &Listener{fd: fd, buf: make([]byte, maxReply)}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, g := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		}
		if errors.Is(err, unix.EINVAL) && protocol == unix.NETLINK_ROUTE && g == unix.RTNLGRP_NEXTHOP {
			err = nil // a kernel without nexthop objects
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, Explain(err, "listen to "+name)
	}
	l.socket = NewSocket(fd, name)
	return l, nil
}

// SetReceiveBuffer sets the size of the receive buffer. It exceeds the sysctl
// limit if the process has the permission.
func (l *Listener) SetReceiveBuffer(size int) {
	grow(l.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size)
}

// Ignore makes the kernel drop the notifications of the changes that c requests.
// A notification begins with its netlink header; the sender's port ID is at
// offset 12. Notifications of forwarding entries have no port ID, so they are
// still received.
func (l *Listener) Ignore(c *Conn) {
	port, ok := c.Port()
	if !ok {
		return // all notifications are received, none is lost
	}
	// A filter loads the port ID as a big-endian number.
	sender := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: sender, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	l.filter(program)
}

// OnlyDefaultRoutes makes the kernel drop the notifications of all other routes. A node of a large cluster has thousands, which would
// each wake the process, and fill the receive buffer. The type of a notification is at offset 4, and a route's prefix length
// (rtm_dst_len) at 17.
func (l *Listener) OnlyDefaultRoutes() {
	kind := func(k uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, k)))
	}
	l.filter([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: kind(unix.RTM_NEWROUTE), Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: kind(unix.RTM_DELROUTE), Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	})
}

// filter attaches a filter program. Without one, which needs no right, all notifications are received.
func (l *Listener) filter(program []unix.SockFilter) {
	_ = unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// Ask sends a request and waits for its acknowledgement. Kinds of notifications that have no multicast group go to the socket that asked for
// them. It must precede Next.
func (l *Listener) Ask(ctx context.Context, m Message) error {
	c := &Conn{fd: l.fd, buf: l.buf}
	return c.One(ctx, m)
}

// Mark sends an empty request (NLMSG_NOOP). Its acknowledgement is an NLMSG_ERROR
// with the sequence number. It arrives after all earlier notifications.
func (l *Listener) Mark(seq uint32) error {
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr)
	b = binary.NativeEndian.AppendUint16(b, unix.NLMSG_NOOP)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return unix.Sendto(l.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// Next waits for one datagram of notifications and calls each for every message
// in it. It reports whether a call returned true, or whether the kernel dropped
// notifications because the receive buffer was full. It reports an overrun twice:
// at once, and when the receive queue is empty. Only what the caller reads after
// the second report is followed by all later notifications. Next fails when ctx
// ends or the socket is closed.
func (l *Listener) Next(ctx context.Context, each func(unix.NlMsghdr, []byte) bool) (bool, error) {
	n, from, err := l.receive(ctx)
	sender, _ := from.(*unix.SockaddrNetlink)
	var errno unix.Errno
	switch {
	case l.dropping && errors.Is(err, unix.EAGAIN):
		l.dropping = false
		return true, nil
	case errors.As(err, &errno) && errno != unix.EBADF, err == nil && n > len(l.buf):
		l.dropping = true // ENOBUFS, or another error that the kernel stored in the socket
		return true, nil
	case err == nil && (sender == nil || sender.Pid != 0):
		return false, nil
	case err != nil:
		return ctx.Err() == nil, err
	}
	found := false
	splitMessages(l.buf[:n], func(h unix.NlMsghdr, data []byte) { found = each(h, data) || found })
	return found, nil
}

// receive receives one datagram. It does not wait for one after an overrun.
func (l *Listener) receive(ctx context.Context) (int, unix.Sockaddr, error) {
	if !l.dropping {
		return l.socket.Receive(ctx, l.buf, unix.MSG_TRUNC)
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	for {
		n, from, err := unix.Recvfrom(l.fd, l.buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return n, from, err
		}
	}
}

// Close closes the socket.
func (l *Listener) Close() error { return l.socket.Close() }
