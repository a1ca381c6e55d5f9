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

// Conn is a netlink socket to nf_tables.
type Conn struct{ *nlconn.Conn }

// Open opens a socket in the calling thread's network namespace.
func Open() (*Conn, error) {
	c, err := nlconn.Open(unix.NETLINK_NETFILTER, "nftables")
	if err != nil {
		return nil, err
	}
	c.GrowSend(bufferSize)
	c.GrowReceive(bufferSize)
	return &Conn{c}, nil
}

// Commit sends all messages as one transaction: the kernel executes all or none.
// The error is the first refusal. If generation is not 0 and nftables changed
// since that generation, the kernel refuses the transaction with ERESTART.
func (c *Conn) Commit(ctx context.Context, generation uint32, msgs ...nlconn.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	// The kernel answers every refused message, and acknowledges only a message
	// that requests it. A reply to the begin message concerns the whole batch
	// (missing permission, failed commit) and may be the only reply.
	b := c.Append(nil, batchMark(unix.NFNL_MSG_BATCH_BEGIN, generation))
	for i, m := range msgs {
		if i == len(msgs)-1 {
			m.Flags |= unix.NLM_F_ACK
		}
		b = c.Append(b, m)
	}
	end := batchMark(unix.NFNL_MSG_BATCH_END, 0)
	return c.Transact(ctx, c.Append(b, end), len(msgs)+2)
}

// batchMark returns the message that begins or ends a transaction.
func batchMark(kind uint16, generation uint32) nlconn.Message {
	m := nlconn.Message{Kind: kind, Body: nfgenmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
	if generation != 0 {
		m.Net32(unix.NFNL_BATCH_GENID, generation)
	}
	return m
}

// nfgenmsg returns struct nfgenmsg, which is at the start of each message.
func nfgenmsg(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// Request returns a message without attributes.
func Request(kind, flags uint16, family byte) nlconn.Message {
	return nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags, Body: nfgenmsg(family, 0)}
}

// List sends a dump request and returns what decode reads from the attributes of the messages of
// the answer and selects. If the context has ended, it sends nothing.
func List[T any](ctx context.Context, c *Client, m nlconn.Message, decode func(attrs []byte) (v T, selected bool, err error)) ([]T, error) {
	conn, err := c.Conn()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return nlconn.List(ctx, conn.Conn, m, func(data []byte) (v T, selected bool, err error) {
		if len(data) < 4 {
			return v, false, nil
		}
		return decode(data[4:])
	})
}

// Get sends one request and calls each with the attributes of every message of
// the answer. The attributes follow struct nfgenmsg. A dump may fail with
// nlconn.ErrInterrupted.
func (c *Conn) Get(ctx context.Context, m nlconn.Message, each func(attrs []byte)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.Ask(ctx, m, attributes(each))
}

func attributes(each func(attrs []byte)) func(uint16, []byte) error {
	return func(_ uint16, data []byte) error {
		if len(data) >= 4 {
			each(data[4:])
		}
		return nil
	}
}

// Generation returns the generation number of nftables in this namespace. Every
// change raises it. It is never 0.
func (c *Conn) Generation(ctx context.Context) (uint32, error) {
	var id uint32
	var damaged error
	err := c.Get(ctx, Request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC), func(attrs []byte) {
		var v []byte
		v, damaged = nlconn.Find(attrs, unix.NFTA_GEN_ID)
		id = nlconn.Net32(v)
	})
	if err == nil && damaged == nil && id == 0 {
		damaged = fmt.Errorf("generation: %w", nlconn.ErrDamaged)
	}
	return id, errors.Join(err, damaged)
}
