// Package nlconn implements a netlink socket: requests and their answers, dumps,
// notifications, attributes, and the sentinel errors for the kernel's error
// numbers. It is independent of the netlink protocol (rtnetlink, nf_tables).
package nlconn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience limits the wait for one reply if the context has no deadline.
	patience = 30 * time.Second
	// MaxWrite is the largest number of requests in one write. 300
	// acknowledgements overflow the default receive buffer.
	MaxWrite = 100
	// maxReply is more than the 32 KiB that the kernel usually puts in one
	// datagram: a link with many virtual functions may take more. Netfilter's
	// datagrams are never larger than 32 KiB. maxSmallReply is Go's largest small
	// object; its allocation does not grow the heap.
	maxReply      = 64 << 10
	maxSmallReply = 32<<10 - 8
	// maxDumps limits how often an interrupted dump is repeated.
	maxDumps = 100
)

// Message is one netlink request.
type Message struct {
	Kind  uint16
	Flags uint16 // in addition to NLM_F_REQUEST and NLM_F_ACK
	// Header is the header of the protocol, for example struct ifinfomsg. It may be
	// nil, and may be in Body instead.
	Header interface{ Serialize() []byte }
	Body
	// Echo is called with the kernel's notification of the created object, if the
	// kernel sends it to the requester (NLM_F_ECHO; for links since Linux 6.2).
	Echo func(data []byte)
	// Fleeting means that an equal request may mean something else later: it names a file descriptor. Remember does not keep its answer.
	Fleeting bool
}

// Conn is a netlink socket in one namespace. It can send several requests in one
// write; the sockets of the netlink libraries cannot.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
	// memory has the answers of earlier reads by their requests, or is nil.
	memory map[string][]answer
	// Spent is the time in Send, Receive and Close, in nanoseconds. Several sockets may share it; nil is valid.
	Spent *atomic.Int64
}

// Open opens a socket of one protocol (NETLINK_*) in the calling thread's network
// namespace. The socket stays in that namespace when the thread leaves it.
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
		unix.NETLINK_EXT_ACK,        // error messages as text
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

// GrowSend sets the send buffer to a size above the sysctl limit. In a user
// namespace the limit applies, and only very large writes fail.
func (c *Conn) GrowSend(size int) { grow(c.fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, size) }

// GrowReceive sets the receive buffer to a size above the sysctl limit. In a user
// namespace the limit applies.
func (c *Conn) GrowReceive(size int) { grow(c.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size) }

func grow(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// Port returns the socket's netlink port ID. The kernel puts it in the
// notifications of the changes that this socket requests.
func (c *Conn) Port() (uint32, bool) {
	sa, err := unix.Getsockname(c.fd)
	own, ok := sa.(*unix.SockaddrNetlink)
	if err != nil || !ok {
		return 0, false
	}
	return own.Pid, true
}

// Requests returns the number of requests sent so far.
func (c *Conn) Requests() uint32 { return c.seq }

// Close closes the socket.
func (c *Conn) Close() error {
	defer c.spend(time.Now())
	return unix.Close(c.fd)
}

// Exchange sends up to MaxWrite requests in one write and returns an error or nil
// for each. The kernel also executes the requests after a refused one. The second
// result is a failure of the socket itself. In that case requests without an
// answer have the result ErrUnknown. An empty msgs is valid.
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
	if err := c.Send(b); err != nil {
		for i := range results {
			results[i] = err // nothing was executed
		}
		return results, err
	}
	left := len(msgs)
	err := c.answers(ctx, first, len(msgs), func(n int, h unix.NlMsghdr, data []byte) (done bool) {
		switch echo := msgs[n].Echo; {
		case !errors.Is(results[n], ErrUnknown):
		case h.Type == unix.NLMSG_ERROR:
			results[n] = refusal(h, data)
			left--
		case echo != nil:
			echo(data)
		}
		return left == 0
	})
	return results, err
}

// answers calls each for every message that answers one of n requests, with the request's index, until it returns
// true. first is the sequence number of the first request.
func (c *Conn) answers(ctx context.Context, first uint32, n int, each func(i int, h unix.NlMsghdr, data []byte) (done bool)) error {
	for done := false; !done; {
		err := c.Receive(ctx, func(h unix.NlMsghdr, data []byte) {
			if i := h.Seq - first; i < uint32(n) && !done {
				done = each(int(i), h, data)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// One sends one request and returns its acknowledgement: nil or the refusal.
func (c *Conn) One(ctx context.Context, m Message) error {
	results, err := c.Exchange(ctx, []Message{m})
	if err != nil {
		return err
	}
	return results[0]
}

// Query sends one request that is not a dump and returns its one answer, which is
// valid until the next call. It does not request an acknowledgement: the
// acknowledgement would come after the answer, and a refusal replaces the answer.
func (c *Conn) Query(ctx context.Context, m Message) ([]byte, error) {
	var answer []byte
	var failed error
	err := c.ask(ctx, m, func(h unix.NlMsghdr, data []byte) bool {
		if h.Type != unix.NLMSG_ERROR {
			answer = data
		} else if failed = refusal(h, data); failed == nil {
			failed = fmt.Errorf("answer without data: %w", unix.EBADMSG)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return answer, failed
}

// Dump sends a dump request and calls each for every message of the answer. It
// calls reset before each try, and tries again if a change interrupts the dump.
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

// List sends a dump request and returns what decode reads from the messages of the answer and
// selects.
func List[T any](ctx context.Context, c *Conn, m Message, decode func(data []byte) (v T, selected bool, err error)) (all []T, err error) {
	err = c.Dump(ctx, m, func() { all = nil }, func(_ uint16, data []byte) error {
		v, selected, err := decode(data)
		if err == nil && selected {
			all = append(all, v)
		}
		return err
	})
	return all, err
}

// Ask sends one request and calls each for every message of the answer; a dump
// has many. It fails with ErrInterrupted if a dump is inconsistent.
func (c *Conn) Ask(ctx context.Context, m Message, each func(kind uint16, data []byte) error) error {
	if m.Flags&unix.NLM_F_DUMP == 0 {
		m.Flags |= unix.NLM_F_ACK
	}
	torn := false
	var failed error
	err := c.ask(ctx, m, func(h unix.NlMsghdr, data []byte) (done bool) {
		torn = torn || h.Flags&unix.NLM_F_DUMP_INTR != 0
		if h.Type == unix.NLMSG_ERROR || h.Type == unix.NLMSG_DONE {
			if err := refusal(h, data); err != nil {
				failed = err
			}
			return true
		}
		if err := each(h.Type, data); err != nil && failed == nil {
			failed = err
		}
		return false
	})
	switch {
	case err != nil:
		return err
	case failed == nil && torn:
		return ErrInterrupted
	}
	return failed
}

// Remember makes Query and Ask send equal requests once, and answer them from memory, until on is false. The caller
// makes no changes meanwhile.
func (c *Conn) Remember(on bool) {
	c.memory = nil
	if on {
		c.memory = map[string][]answer{}
	}
}

// answer is one message of the kernel.
type answer struct {
	header unix.NlMsghdr
	data   []byte
}

// ask sends one request, unless the memory has its answer, and calls each for the messages of the answer until it returns true.
func (c *Conn) ask(ctx context.Context, m Message, each func(h unix.NlMsghdr, data []byte) (done bool)) error {
	b := c.Append(nil, m)
	key, torn, remembers := "", false, c.memory != nil && !m.Fleeting
	if remembers {
		key = string(b[:8]) + string(b[12:]) // without the sequence number
		for _, a := range c.memory[key] {
			if each(a.header, a.data) {
				return nil
			}
		}
	}
	if err := c.Send(b); err != nil {
		return err
	}
	var all []answer
	err := c.answers(ctx, c.seq, 1, func(_ int, h unix.NlMsghdr, data []byte) bool {
		if remembers {
			torn = torn || h.Flags&unix.NLM_F_DUMP_INTR != 0
			all = append(all, answer{h, bytes.Clone(data)})
		}
		return each(h, data)
	})
	if remembers && err == nil && !torn {
		c.memory[key] = all
	}
	return err
}

// Append appends a request with the next sequence number to b.
func (c *Conn) Append(b []byte, m Message) []byte {
	b, start := c.Begin(b, m.Kind, m.Flags)
	if m.Header != nil {
		b = append(b, m.Header.Serialize()...)
	}
	return Finish(append(b, m.Body...), start)
}

// Begin appends the header of a request with the next sequence number to b, and
// returns the offset of the request in b. The caller appends the body and then
// calls Finish.
func (c *Conn) Begin(b []byte, kind, flags uint16) (_ []byte, start int) {
	c.seq++
	start = len(b)
	b = append(b, 0, 0, 0, 0) // the length
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, c.seq)
	return append(b, 0, 0, 0, 0), start // the sender's port
}

// Finish sets the length of the request that starts at offset start of b, and
// pads it.
func Finish(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// Execute sends the n requests in b and returns the refusals by the index of the
// request. The n requests must be the last ones appended, and the last of them
// must have NLM_F_ACK. The other requests have no acknowledgement: acknowledging
// each would take longer than the kernel's own work. If the context has ended, it
// sends nothing.
func (c *Conn) Execute(ctx context.Context, b []byte, n int) (map[int]error, error) {
	first := c.seq + 1 - uint32(n)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.Send(b); err != nil {
		return nil, err
	}
	refused := map[int]error{}
	err := c.answers(ctx, first, n, func(i int, h unix.NlMsghdr, data []byte) (done bool) {
		if h.Type != unix.NLMSG_ERROR {
			return false
		}
		if err := refusal(h, data); err != nil {
			refused[i] = err
		}
		return i == n-1
	})
	return refused, err
}

// Transact sends the n messages in b as one netfilter transaction and returns the
// first refusal. The messages must be the last ones appended: a begin message,
// requests of which the last has NLM_F_ACK, and an end message.
func (c *Conn) Transact(ctx context.Context, b []byte, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.Send(b); err != nil {
		return err
	}
	var first error
	err := c.answers(ctx, c.seq+1-uint32(n), n-1, func(i int, h unix.NlMsghdr, data []byte) (done bool) {
		if h.Type != unix.NLMSG_ERROR {
			return false
		}
		if err := refusal(h, data); err != nil && first == nil {
			first = err
		}
		return i == 0 || i == n-2
	})
	if err != nil {
		return err
	}
	return first
}

// Join subscribes the socket to the notifications of a multicast group.
func (c *Conn) Join(group int) error {
	return unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Send writes requests to the socket. No context stops it: a step of several
// requests must not stop in the middle, and an Undo continues after its time is
// over. A caller checks its context before a step.
func (c *Conn) Send(b []byte) error {
	defer c.spend(time.Now())
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Receive reads one datagram of the kernel and calls each for every message in
// it. It first tries without waiting: the kernel executes requests during the
// write, so the answer is usually there.
func (c *Conn) Receive(ctx context.Context, each func(unix.NlMsghdr, []byte)) error {
	defer c.spend(time.Now())
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

// spend adds the time since start to Spent.
func (c *Conn) spend(start time.Time) {
	if c.Spent != nil {
		c.Spent.Add(int64(time.Since(start)))
	}
}

// wait blocks until the socket is readable, the context ends, or patience is
// over.
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
		// Poll for at most a second, so that a cancelled context is noticed.
		n, err := unix.Poll(ready, int(min(left, time.Second)/time.Millisecond)+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

// splitMessages calls each for every netlink message in b. It drops the rest of b
// after a message with an invalid length.
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
