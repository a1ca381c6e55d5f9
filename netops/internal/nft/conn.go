package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// bufferSize is the size of the send and receive buffers. A transaction is one
// write, and a write larger than the send buffer fails with EMSGSIZE.
const bufferSize = 4 << 20

// headerSize is the size of struct nfgenmsg, which is at the start of each message.
const headerSize = 4

// Conn returns the client's socket. The first call opens it, in the calling
// thread's network namespace.
func (c *Client) Conn() (*nlconn.Conn, error) {
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := nlconn.Open(unix.NETLINK_NETFILTER, "nftables")
	if err != nil {
		return nil, err
	}
	conn.GrowSend(bufferSize)
	conn.GrowReceive(bufferSize)
	conn.Spent = c.Spent
	c.conn = conn
	return conn, nil
}

// Close closes the socket. The next use opens a new one.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return nlconn.Explain(err, "close nftables socket")
}

// Commit sends all messages as one transaction: the kernel executes all or none.
// The error is the first refusal. If generation is not 0 and nftables changed
// since that generation, the kernel refuses the transaction with ERESTART.
func (c *Client) Commit(ctx context.Context, generation uint32, msgs ...nlconn.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	conn, err := c.Conn()
	if err != nil {
		return err
	}
	// The kernel answers every refused message, and acknowledges only a message
	// that requests it. A reply to the begin message concerns the whole batch
	// (missing permission, failed commit) and may be the only reply.
	b := conn.Append(nil, batchMark(unix.NFNL_MSG_BATCH_BEGIN, generation))
	for i, m := range msgs {
		if i == len(msgs)-1 {
			m.Flags |= unix.NLM_F_ACK
		}
		b = conn.Append(b, m)
	}
	end := batchMark(unix.NFNL_MSG_BATCH_END, 0)
	return conn.Transact(ctx, conn.Append(b, end), len(msgs)+2)
}

// Unchanged calls try, which reads and then commits with the generation, until no other program changes nftables between both. The commit's
// error is then not ERESTART.
func (c *Client) Unchanged(ctx context.Context, try func(generation uint32) error) error {
	for range Tries {
		generation, err := c.Generation(ctx)
		if err == nil {
			err = try(generation)
		}
		if !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return fmt.Errorf("%w: nftables is being changed", nlconn.ErrBusy)
}

// commitOrEach commits entries in one transaction. If the kernel refuses it for a reason that is accepted, commitOrEach commits each in one of its
// own, and goes on after refusals.
func (c *Client) commitOrEach(ctx context.Context, kind, flags uint16, entries []*Entry, accepted func(error) bool, verb string) error {
	err := c.commitEntries(ctx, kind, flags, entries)
	if err == nil || !accepted(err) {
		return nlconn.Explain(err, describe(verb, entries))
	}
	if len(entries) == 1 {
		return nil
	}
	var failed error
	for i := range entries {
		failed = errors.Join(failed, c.commitOrEach(ctx, kind, flags, entries[i:i+1], accepted, verb))
	}
	return failed
}

// batchMark returns the message that begins or ends a transaction.
func batchMark(kind uint16, generation uint32) nlconn.Message {
	m := nlconn.Message{Kind: kind, Body: nfgenmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
	if generation != 0 {
		m.Net32(unix.NFNL_BATCH_GENID, generation)
	}
	return m
}

// nfgenmsg returns struct nfgenmsg.
func nfgenmsg(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// Request returns a message without attributes.
func Request(kind, flags uint16, family byte) nlconn.Message {
	return nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags, Body: nfgenmsg(family, 0)}
}

// List sends a dump request and returns what decode reads from the attributes of the messages of
// the answer and selects. If the context has ended, it sends nothing. A kernel without nftables has no objects.
func List[T any](ctx context.Context, c *Client, m nlconn.Message, decode func(attrs []byte) (v T, selected bool, err error)) ([]T, error) {
	conn, err := c.Conn()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, c.unlessMissing(ctx, err)
	}
	all, err := nlconn.List(ctx, conn, m, func(data []byte) (v T, selected bool, err error) {
		if len(data) < headerSize {
			return v, false, nil
		}
		return decode(data[headerSize:])
	})
	return all, c.unlessMissing(ctx, err)
}

// Get sends a request for one object and returns what decode reads from its attributes.
// found is false if the object is absent, or if the kernel has no nftables.
func Get[T any](ctx context.Context, c *Client, m nlconn.Message, decode func(attrs []byte) (T, error)) (v T, found bool, err error) {
	conn, err := c.Conn()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return v, false, c.unlessMissing(ctx, err)
	}
	err = conn.Ask(ctx, m, func(_ uint16, data []byte) (err error) {
		if len(data) >= headerSize {
			v, err = decode(data[headerSize:])
			found = true
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return v, found, nil
	}
	return v, found, c.unlessMissing(ctx, err)
}

// unlessMissing returns the error of a request that reads, or nil if its reason is that the kernel has no nftables: then socket(2) knows
// no netfilter, or nfnetlink no subsystem of this number (net/netfilter/nfnetlink.c), which it answers like an invalid request.
func (c *Client) unlessMissing(ctx context.Context, err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) || c.conn == nil {
		return err
	}
	probe := c.conn.Ask(ctx, Request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC), func(uint16, []byte) error { return nil })
	if errors.Is(probe, unix.EINVAL) {
		return nil
	}
	return err
}

// Exists reports whether the object of a request exists.
func (c *Client) Exists(ctx context.Context, m nlconn.Message) (bool, error) {
	_, found, err := Get(ctx, c, m, func([]byte) (struct{}, error) { return struct{}{}, nil })
	return found, err
}

// Generation returns the generation number of nftables in this namespace. Every
// change raises it. It is 0 only without nftables.
func (c *Client) Generation(ctx context.Context) (uint32, error) {
	id, found, err := Get(ctx, c, Request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC), func(attrs []byte) (uint32, error) {
		v, err := nlconn.Find(attrs, unix.NFTA_GEN_ID)
		return nlconn.Net32(v), err
	})
	if err == nil && found && id == 0 {
		err = fmt.Errorf("generation: %w", nlconn.ErrDamaged)
	}
	return id, err
}
