package netops

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
	// rtPatience bounds the wait for one reply where the context has no deadline.
	rtPatience = 30 * time.Second
	// rtMaxWrite is how many messages go in one write: 300 acknowledgements
	// overflow the default receive buffer.
	rtMaxWrite = 100
	// rtMaxReply is above what the kernel puts in one datagram (32 KiB).
	rtMaxReply = 64 << 10
	// rtReads bounds how often an interrupted dump starts again.
	rtReads = 100
)

// rtMessage is one rtnetlink request.
type rtMessage struct {
	kind  uint16 // RTM_*
	flags uint16 // beside NLM_F_REQUEST and NLM_F_ACK
	data  []nl.NetlinkRequestData
	// echo is called with the kernel's notification of what the request made, where
	// the kernel has one for whoever asked (NLM_F_ECHO; links since Linux 6.2).
	echo func(data []byte)
}

// rtConn is an rtnetlink socket in one namespace. Requests of one write are
// answered one by one, which the library's requests cannot do.
type rtConn struct {
	fd  int
	seq uint32
	buf []byte
}

// openRTConn opens a socket in the calling thread's network namespace. It
// stays in it when the thread leaves.
func openRTConn() (*rtConn, error) { return openNetlink(unix.NETLINK_ROUTE, "rtnetlink") }

// openNetlink is openRTConn for any protocol of netlink that answers as
// rtnetlink does.
func openNetlink(protocol int, name string) (*rtConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, kernelError(err, "open "+name+" socket")
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, kernelError(err, "bind "+name+" socket")
	}
	for _, option := range []int{
		unix.NETLINK_CAP_ACK,        // acknowledgements without a copy of the request
		unix.NETLINK_EXT_ACK,        // reasons in words
		unix.NETLINK_GET_STRICT_CHK, // dumps filtered by the kernel
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			_ = unix.Close(fd)
			return nil, kernelError(err, "set up "+name+" socket")
		}
	}
	return &rtConn{fd: fd, buf: make([]byte, rtMaxReply)}, nil
}

func (c *rtConn) close() error { return unix.Close(c.fd) }

// exchange sends up to rtMaxWrite requests in one write and returns an error
// or nil for each: those after a refused one are executed all the same. The
// second result is a failure of the socket itself; then what happened is
// unknown for requests without a result (errUnknown). A step may need none.
func (c *rtConn) exchange(ctx context.Context, msgs []rtMessage) ([]error, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	var b []byte
	first := c.seq + 1
	for _, m := range msgs {
		m.flags |= unix.NLM_F_ACK
		if m.echo != nil {
			m.flags |= unix.NLM_F_ECHO
		}
		b = c.append(b, m)
	}
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = errUnknown
	}
	if err := c.send(b); err != nil {
		for i := range results {
			results[i] = err // nothing was executed
		}
		return results, err
	}
	for left := len(msgs); left > 0; {
		err := c.receive(ctx, func(h unix.NlMsghdr, data []byte) {
			n := h.Seq - first
			if n >= uint32(len(msgs)) || !errors.Is(results[n], errUnknown) {
				return
			}
			if h.Type != unix.NLMSG_ERROR {
				if echo := msgs[n].echo; echo != nil {
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

// one sends one request that has no answer but yes or no.
func (c *rtConn) one(ctx context.Context, m rtMessage) error {
	results, err := c.exchange(ctx, []rtMessage{m})
	if err != nil {
		return err
	}
	return results[0]
}

// errUnknown stands for the result of a request whose answer did not arrive.
var errUnknown = errors.New("no answer from the kernel")

// query sends one request that is no dump and returns its one answer, valid
// until the next call. No acknowledgement is asked for: it would come after the
// answer, and a refusal comes instead of it.
func (c *rtConn) query(ctx context.Context, m rtMessage) ([]byte, error) {
	if err := c.send(c.append(nil, m)); err != nil {
		return nil, err
	}
	var answer []byte
	var failed error
	for answer == nil && failed == nil {
		err := c.receive(ctx, func(h unix.NlMsghdr, data []byte) {
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

// dump sends a dump request and calls each for the messages of the answer. A
// dump that changes interrupt is begun again, after reset.
func (c *rtConn) dump(ctx context.Context, m rtMessage, reset func(), each func(kind uint16, data []byte) error) error {
	m.flags |= unix.NLM_F_DUMP
	for range rtReads {
		reset()
		err := c.ask(ctx, m, each)
		if !errors.Is(err, errInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("%w: it is being changed all the time", ErrBusy)
}

func (c *rtConn) ask(ctx context.Context, m rtMessage, each func(kind uint16, data []byte) error) error {
	if m.flags&unix.NLM_F_DUMP == 0 {
		m.flags |= unix.NLM_F_ACK
	}
	if err := c.send(c.append(nil, m)); err != nil {
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
		return errInterrupted
	}
	return failed
}

// append appends a request to b under the next sequence number.
func (c *rtConn) append(b []byte, m rtMessage) []byte {
	c.seq++
	start := len(b)
	b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
	for _, d := range m.data {
		b = append(b, d.Serialize()...)
	}
	h := b[start:]
	binary.NativeEndian.PutUint32(h, uint32(len(h)))
	binary.NativeEndian.PutUint16(h[4:], m.kind)
	binary.NativeEndian.PutUint16(h[6:], m.flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], c.seq)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func (c *rtConn) send(b []byte) error {
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive takes one datagram of the kernel and calls each for its messages. It
// waits only if none is there: requests are executed within the write.
func (c *rtConn) receive(ctx context.Context, each func(unix.NlMsghdr, []byte)) error {
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

// wait blocks until there is something to read, or the context or rtPatience ends.
func (c *rtConn) wait(ctx context.Context) error {
	deadline := time.Now().Add(rtPatience)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
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

// refusal is the error of NLMSG_ERROR or NLMSG_DONE with the kernel's words
// where there are some; nil for success.
func refusal(h unix.NlMsghdr, data []byte) error {
	err := errnoOf(data)
	if err == nil || h.Type != unix.NLMSG_ERROR || h.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	start := 4 + unix.SizeofNlMsghdr
	if h.Flags&unix.NLM_F_CAPPED == 0 || len(data) < start {
		return err
	}
	reason := ""
	_ = eachRTAttr(data[start:], func(kind uint16, v []byte) error {
		if kind == unix.NLMSGERR_ATTR_MSG {
			reason = attrText(v)
		}
		return nil
	})
	if reason == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, reason)
}
