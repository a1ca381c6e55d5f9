// Package nlconn is a netlink socket: requests and their answers, dumps,
// notifications, attributes, and the meanings of refusals. It knows no protocol of
// netlink.
package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// patience bounds the wait for one reply where the context has no deadline.
	patience = 30 * time.Second
	// MaxWrite is how many requests go in one write: 300 acknowledgements
	// overflow the default receive buffer.
	MaxWrite = 100
	// maxReply is more than the kernel puts in one datagram (32 KiB): a link with
	// many virtual functions may take more. Netfilter's never do, and maxSmallReply
	// is Go's largest small object, for which the heap need not grow.
	maxReply      = 64 << 10
	maxSmallReply = 32<<10 - 8
	// maxDumps bounds how often an interrupted dump starts again.
	maxDumps = 100
)

// Message is one request.
type Message struct {
	Kind  uint16
	Flags uint16 // beside NLM_F_REQUEST and NLM_F_ACK
	// Body follows the netlink header, and data follows body.
	Body []byte
	Data []nl.NetlinkRequestData
	// Echo is called with the kernel's notification of what the request made, if
	// the kernel sends that to the requester (NLM_F_ECHO; links since Linux 6.2).
	Echo func(data []byte)
}

// Conn is a netlink socket in one namespace. The libraries' sockets match one
// reply to one request; several requests in one write need more than that.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
}

// Open opens a socket of one protocol (NETLINK_*) in the calling thread's
// network namespace. It stays in that namespace when the thread leaves it.
func Open(protocol int, name string) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, Explain(err, "open "+name+" socket")
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, Explain(err, "bind "+name+" socket")
	}
	for _, option := range []int{
		unix.NETLINK_CAP_ACK,        // acknowledgements without a copy of the request
		unix.NETLINK_EXT_ACK,        // reasons in words
		unix.NETLINK_GET_STRICT_CHK, // dumps filtered by the kernel
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			_ = unix.Close(fd)
			return nil, Explain(err, "set up "+name+" socket")
		}
	}
	size := maxReply
	if protocol == unix.NETLINK_NETFILTER {
		size = maxSmallReply
	}
	return &Conn{fd: fd, buf: make([]byte, size)}, nil
}

// GrowSend asks for a send buffer above the sysctl limit. In a user namespace the
// limit holds, and only huge writes fail.
func (c *Conn) GrowSend(size int) { grow(c.fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, size) }

// GrowReceive does the same for the receive buffer.
func (c *Conn) GrowReceive(size int) { grow(c.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size) }

func grow(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// Port is the socket's address, which notifications of its own changes name.
func (c *Conn) Port() (uint32, bool) {
	sa, err := unix.Getsockname(c.fd)
	own, ok := sa.(*unix.SockaddrNetlink)
	if err != nil || !ok {
		return 0, false
	}
	return own.Pid, true
}

// Requests counts what was sent so far.
func (c *Conn) Requests() uint32 { return c.seq }

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Exchange sends up to MaxWrite requests in one write and returns an error
// or nil for each: those after a refused one are executed all the same. The
// second result is a failure of the socket itself; then what happened is
// unknown for requests without a result (ErrUnknown). A step may need none.
func (c *Conn) Exchange(ctx context.Context, msgs []Message) ([]error, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	var b []byte
	first := c.seq + 1
	for _, m := range msgs {
		m.Flags |= unix.NLM_F_ACK
		if m.Echo != nil {
			m.Flags |= unix.NLM_F_ECHO
		}
		b = c.Append(b, m)
	}
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = ErrUnknown
	}
	if err := c.Send(ctx, b); err != nil {
		for i := range results {
			results[i] = err // nothing was executed
		}
		return results, err
	}
	for left := len(msgs); left > 0; {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			n := h.Seq - first
			if n >= uint32(len(msgs)) || !errors.Is(results[n], ErrUnknown) {
				return
			}
			if h.Type != unix.NLMSG_ERROR {
				if echo := msgs[n].Echo; echo != nil {
					echo(data)
				}
				return
			}
			results[n] = refusal(h, data)
			left--
		})
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// One sends one request that has no answer but yes or no.
func (c *Conn) One(ctx context.Context, m Message) error {
	results, err := c.Exchange(ctx, []Message{m})
	if err != nil {
		return err
	}
	return results[0]
}

// Query sends one request that is no dump and returns its one answer, valid
// until the next call. No acknowledgement is asked for: it would come after the
// answer, and a refusal comes instead of it.
func (c *Conn) Query(ctx context.Context, m Message) ([]byte, error) {
	if err := c.Send(ctx, c.Append(nil, m)); err != nil {
		return nil, err
	}
	var answer []byte
	var failed error
	for answer == nil && failed == nil {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			switch {
			case h.Seq != c.seq:
			case h.Type != unix.NLMSG_ERROR:
				answer = data
			default:
				if failed = refusal(h, data); failed == nil {
					failed = fmt.Errorf("answer without data: %w", unix.EBADMSG)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return answer, failed
}

// Dump sends a dump request and calls each for the messages of the answer. A
// dump that changes interrupt is begun again, after reset.
func (c *Conn) Dump(ctx context.Context, m Message, reset func(), each func(kind uint16, data []byte) error) error {
	m.Flags |= unix.NLM_F_DUMP
	for range maxDumps {
		reset()
		err := c.Ask(ctx, m, each)
		if !errors.Is(err, ErrInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("%w: it is being changed all the time", ErrBusy)
}

// Ask sends one request and calls each for the messages of the answer, which for
// a dump are many. It fails with ErrInterrupted where a dump is inconsistent.
func (c *Conn) Ask(ctx context.Context, m Message, each func(kind uint16, data []byte) error) error {
	if m.Flags&unix.NLM_F_DUMP == 0 {
		m.Flags |= unix.NLM_F_ACK
	}
	if err := c.Send(ctx, c.Append(nil, m)); err != nil {
		return err
	}
	seq, done, torn := c.seq, false, false
	var failed error
	for !done {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			if h.Seq != seq || done {
				return
			}
			torn = torn || h.Flags&unix.NLM_F_DUMP_INTR != 0
			switch h.Type {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				done = true
				if err := refusal(h, data); err != nil {
					failed = err
				}
			default:
				if err := each(h.Type, data); err != nil && failed == nil {
					failed = err
				}
			}
		})
		if err != nil {
			return err
		}
	}
	if failed == nil && torn {
		return ErrInterrupted
	}
	return failed
}

// Append appends a request to b under the next sequence number.
func (c *Conn) Append(b []byte, m Message) []byte {
	b, start := c.Begin(b, m.Kind, m.Flags)
	b = append(b, m.Body...)
	for _, d := range m.Data {
		b = append(b, d.Serialize()...)
	}
	return Finish(b, start)
}

// Begin appends the header of a request under the next sequence number, and
// gives the place where the request starts. Its body is to be appended, and the
// whole to be given to finish.
func (c *Conn) Begin(b []byte, kind, flags uint16) (_ []byte, start int) {
	c.seq++
	start = len(b)
	b = append(b, 0, 0, 0, 0) // the length
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, c.seq)
	return append(b, 0, 0, 0, 0), start // the sender's port
}

// Finish ends the request that starts at a place of b.
func Finish(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// Execute sends the n requests in b, which were appended last and of which the
// last has NLM_F_ACK, and gives the refusals by the requests' places. Success is
// not acknowledged for each: that would take longer than the kernel's own work.
func (c *Conn) Execute(ctx context.Context, b []byte, n int) (map[int]error, error) {
	first := c.seq + 1 - uint32(n)
	if err := c.Send(ctx, b); err != nil {
		return nil, err
	}
	refused := map[int]error{}
	for done := false; !done; {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			i := h.Seq - first
			if h.Type != unix.NLMSG_ERROR || i >= uint32(n) {
				return
			}
			if err := refusal(h, data); err != nil {
				refused[int(i)] = err
			}
			done = done || int(i) == n-1
		})
		if err != nil {
			return nil, err
		}
	}
	return refused, nil
}

// Transact sends the n messages in b, which were appended last and are one
// transaction of netfilter's: a begin, requests of which the last has NLM_F_ACK,
// and an end. The error is the first refusal.
func (c *Conn) Transact(ctx context.Context, b []byte, n int) error {
	begin, last := c.seq+1-uint32(n), c.seq-1
	if err := c.Send(ctx, b); err != nil {
		return err
	}
	var first error
	for done := false; !done; {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			if done || h.Type != unix.NLMSG_ERROR || h.Seq-begin > last-begin {
				return
			}
			if err := refusal(h, data); err != nil && first == nil {
				first = err
			}
			done = h.Seq == begin || h.Seq == last
		})
		if err != nil {
			return err
		}
	}
	return first
}

// Join has the socket receive the notifications of a group too.
func (c *Conn) Join(group int) error {
	return unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Send writes requests, none of them if the context has ended.
func (c *Conn) Send(ctx context.Context, b []byte) error {
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

// Receive takes one datagram of the kernel and calls each for its messages. It
// waits only if none is there: requests are executed within the write.
func (c *Conn) Receive(ctx context.Context, each func(unix.NlMsghdr, []byte)) error {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if err := c.wait(ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case n > len(c.buf):
			return fmt.Errorf("reply of %d bytes is longer than expected: %w", n, unix.EMSGSIZE)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			splitMessages(c.buf[:n], each)
			return nil
		}
	}
}

// wait blocks until there is something to read, or the context or patience ends.
func (c *Conn) wait(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(patience)
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
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
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
