package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nftBuffer is asked for as send and receive buffer: one transaction is
	// one write, and a write above the send buffer is EMSGSIZE.
	nftBuffer = 4 << 20
	// nftPatience bounds the wait for one reply where the context has no deadline.
	nftPatience = 30 * time.Second
	// nftHeader is struct nlmsghdr and struct nfgenmsg.
	nftHeader = unix.SizeofNlMsghdr + 4
	// nftMaxReply is more than the kernel puts in one datagram of a dump (32 KiB less
	// what it needs itself), and Go's largest small object, for which the heap need
	// not grow.
	nftMaxReply = 32<<10 - 8
)

// errInterrupted means that a dump was inconsistent (NLM_F_DUMP_INTR): try again.
var errInterrupted = errors.New("interrupted by a change")

// nftMessage is one nf_tables request without its netlink header.
type nftMessage struct {
	kind   uint16 // NFT_MSG_*
	flags  uint16 // beside NLM_F_REQUEST
	family byte   // NFPROTO_*
	attrs  []byte
}

// nftConn is a netlink socket to nf_tables. The libraries' connections match
// no reply to its request, which transactions need: after a refused one,
// replies to its other messages are still to come.
type nftConn struct {
	fd  int
	seq uint32
	buf []byte
}

// openNFTConn opens a socket in the calling thread's network namespace.
func openNFTConn() (*nftConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, kernelError(err, "open nftables socket")
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, kernelError(err, "bind nftables socket")
	}
	grow(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	grow(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	// Refusals without a copy of the refused message; a kernel without it sends longer ones.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return &nftConn{fd: fd, buf: make([]byte, nftMaxReply)}, nil
}

// grow sets a buffer size past the sysctl limit where the process may. It may
// not in a user namespace; then the limit holds and only huge writes suffer.
func grow(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, nftBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, nftBuffer)
	}
}

func (c *nftConn) close() error { return unix.Close(c.fd) }

// commit makes all messages one transaction: all happen or none. The error is
// the first errno of the kernel's. With a generation other than 0 the
// transaction is refused with ERESTART if anything changed since.
func (c *nftConn) commit(ctx context.Context, generation uint32, msgs ...nftMessage) error {
	if len(msgs) == 0 {
		return nil
	}
	begin := c.seq + 1
	b := c.batchMark(nil, unix.NFNL_MSG_BATCH_BEGIN, generation)
	for i, m := range msgs {
		if i == len(msgs)-1 {
			// Refusals arrive for every message, success is only told where asked for.
			m.flags |= unix.NLM_F_ACK
		}
		b = c.append(b, m)
	}
	last := c.seq
	b = c.batchMark(b, unix.NFNL_MSG_BATCH_END, 0)
	if err := c.send(ctx, b); err != nil {
		return err
	}
	return c.awaitCommit(ctx, begin, last)
}

// awaitCommit reads replies to the messages from begin to last. A reply to
// the batch's begin concerns all of it (no permission, commit failed) and may
// be the only one.
func (c *nftConn) awaitCommit(ctx context.Context, begin, last uint32) error {
	var first error
	for {
		done := false
		err := c.receive(ctx, func(h unix.NlMsghdr, data []byte) {
			if done || h.Type != unix.NLMSG_ERROR || h.Seq-begin > last-begin {
				return
			}
			if err := errnoOf(data); err != nil && first == nil {
				first = err
			}
			done = h.Seq == begin || h.Seq == last
		})
		if err != nil {
			return err
		}
		if done {
			return first
		}
	}
}

// dump is query for a dump: one that changes interrupt is begun again, after reset.
func (c *nftConn) dump(ctx context.Context, m nftMessage, reset func(), each func(attrs []byte)) error {
	for range nftReads {
		reset()
		if err := c.query(ctx, m, each); !errors.Is(err, errInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("%w: nftables is being changed all the time", ErrBusy)
}

// query sends one request and calls each for every message of the answer,
// with the attributes behind struct nfgenmsg. Dumps may fail with errInterrupted.
func (c *nftConn) query(ctx context.Context, m nftMessage, each func(attrs []byte)) error {
	m.flags |= unix.NLM_F_ACK
	if err := c.send(ctx, c.append(nil, m)); err != nil {
		return err
	}
	seq, done, torn := c.seq, false, false
	var failed error
	for !done {
		err := c.receive(ctx, func(h unix.NlMsghdr, data []byte) {
			if h.Seq != seq || done {
				return
			}
			torn = torn || h.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case h.Type == unix.NLMSG_ERROR, h.Type == unix.NLMSG_DONE:
				done, failed = true, errnoOf(data)
			case len(data) >= 4:
				each(data[4:])
			}
		})
		if err != nil {
			return err
		}
	}
	if failed == nil && torn {
		return errInterrupted
	}
	return failed
}

// append appends a request to b under the next sequence number.
func (c *nftConn) append(b []byte, m nftMessage) []byte {
	return c.appendRaw(b, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.flags, m.family, 0, m.attrs)
}

// batchMark appends the begin or end of a transaction.
func (c *nftConn) batchMark(b []byte, kind uint16, generation uint32) []byte {
	var attrs []byte
	if generation != 0 {
		attrs = binary.NativeEndian.AppendUint16(attrs, 8)
		attrs = binary.NativeEndian.AppendUint16(attrs, unix.NFNL_BATCH_GENID)
		attrs = binary.BigEndian.AppendUint32(attrs, generation)
	}
	return c.appendRaw(b, kind, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, attrs)
}

func (c *nftConn) appendRaw(b []byte, kind, flags uint16, family byte, resource uint16, attrs []byte) []byte {
	c.seq++
	b = binary.NativeEndian.AppendUint32(b, uint32(nftHeader+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, c.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, resource)
	b = append(b, attrs...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// send writes requests, none of them if the context has ended.
func (c *nftConn) send(ctx context.Context, b []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive takes one datagram of the kernel and calls each for its messages; it may
// return without any. It waits only if none is there: requests are executed within
// the write.
func (c *nftConn) receive(ctx context.Context, each func(unix.NlMsghdr, []byte)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return c.wait(ctx)
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n > len(c.buf):
		return fmt.Errorf("reply of %d bytes is longer than expected: %w", n, unix.EMSGSIZE)
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil // not the kernel
	}
	splitMessages(c.buf[:n], each)
	return nil
}

// wait blocks until there is something to read, or the context or nftPatience ends.
func (c *nftConn) wait(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(nftPatience)
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("no answer from the kernel: %w", unix.ETIMEDOUT)
		}
		ready := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		// A cancelled context is noticed within the second.
		n, err := unix.Poll(ready, int(min(left, time.Second)/time.Millisecond)+1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			return nil
		}
	}
}

// splitMessages calls each for the netlink messages in b; what follows a
// damaged length is dropped.
func splitMessages(b []byte, each func(unix.NlMsghdr, []byte)) {
	for len(b) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{
			Len:   binary.NativeEndian.Uint32(b),
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Pid:   binary.NativeEndian.Uint32(b[12:]),
		}
		if h.Len < unix.SizeofNlMsghdr || uint64(h.Len) > uint64(len(b)) {
			return
		}
		each(h, b[unix.SizeofNlMsghdr:h.Len])
		aligned := (uint64(h.Len) + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		b = b[min(aligned, uint64(len(b))):]
	}
}

// errnoOf reads the error number that begins NLMSG_ERROR and NLMSG_DONE; nil for none.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
		return syscall.Errno(-code)
	}
	return nil
}
