package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// nftBuffer is asked for as send and receive buffer: one transaction is one
// write, and a write above the send buffer is EMSGSIZE.
const nftBuffer = 4 << 20

// nftConn is a netlink socket to nf_tables.
type nftConn struct{ nl *nlconn.Conn }

// openNFTConn opens a socket in the calling thread's network namespace.
func openNFTConn() (*nftConn, error) {
	c, err := nlconn.Open(unix.NETLINK_NETFILTER, "nftables")
	if err != nil {
		return nil, err
	}
	c.GrowSend(nftBuffer)
	c.GrowReceive(nftBuffer)
	return &nftConn{c}, nil
}

func (c *nftConn) close() error { return c.nl.Close() }

// commit makes all messages one transaction: all happen or none. The error is
// the first of the kernel's refusals. With a generation other than 0 the
// transaction is refused with ERESTART if anything changed since.
func (c *nftConn) commit(ctx context.Context, generation uint32, msgs ...nlconn.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	// A refusal arrives for every message, success for the one that asks for it.
	// A reply to the batch's begin concerns all of it (no permission, commit
	// failed) and may be the only one.
	b := c.nl.Append(nil, batchMark(unix.NFNL_MSG_BATCH_BEGIN, generation))
	for i, m := range msgs {
		if i == len(msgs)-1 {
			m.Flags |= unix.NLM_F_ACK
		}
		b = c.nl.Append(b, m)
	}
	end := batchMark(unix.NFNL_MSG_BATCH_END, 0)
	return c.nl.Transact(ctx, c.nl.Append(b, end), len(msgs)+2)
}

// batchMark begins or ends a transaction.
func batchMark(kind uint16, generation uint32) nlconn.Message {
	body := nfgenmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		body = nlconn.AppendAttr(body, unix.NFNL_BATCH_GENID, binary.BigEndian.AppendUint32(nil, generation))
	}
	return nlconn.Message{Kind: kind, Body: body}
}

// nfgenmsg is struct nfgenmsg, which begins each message.
func nfgenmsg(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// request is a message without attributes.
func request(kind, flags uint16, family byte) nlconn.Message {
	return nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags, Body: nfgenmsg(family, 0)}
}

// message builds one request from its attributes.
func message(kind, flags uint16, family byte, fill func(*netlink.AttributeEncoder) error) (nlconn.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if err := fill(ae); err != nil {
		return nlconn.Message{}, fmt.Errorf("encode nftables message: %w", err)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return nlconn.Message{}, fmt.Errorf("encode nftables message: %w", err)
	}
	m := request(kind, flags, family)
	m.Body = append(m.Body, attrs...)
	return m, nil
}

// dump is query for a dump: one that changes interrupt is begun again, after reset.
func (c *nftConn) dump(ctx context.Context, m nlconn.Message, reset func(), each func(attrs []byte)) error {
	return c.nl.Dump(ctx, m, reset, attributes(each))
}

// query sends one request and calls each for every message of the answer,
// with the attributes behind struct nfgenmsg. Dumps may fail with nlconn.ErrInterrupted.
func (c *nftConn) query(ctx context.Context, m nlconn.Message, each func(attrs []byte)) error {
	return c.nl.Ask(ctx, m, attributes(each))
}

func attributes(each func(attrs []byte)) func(uint16, []byte) error {
	return func(_ uint16, data []byte) error {
		if len(data) >= 4 {
			each(data[4:])
		}
		return nil
	}
}

// generation is the number that every change to nftables of this namespace
// raises; it is never 0.
func (c *nftConn) generation(ctx context.Context) (uint32, error) {
	var id uint32
	var damaged error
	err := c.query(ctx, request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC), func(attrs []byte) {
		damaged = eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
			if ad.Type() == unix.NFTA_GEN_ID {
				id = ad.Uint32()
			}
			return nil
		})
	})
	if err == nil && damaged == nil && id == 0 {
		damaged = fmt.Errorf("generation: %w", nlconn.ErrDamaged)
	}
	return id, errors.Join(err, damaged)
}
