package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// TraceTable is the name of the tables that trace the packets of a flow. They
// exist during a trace only.
const TraceTable = "cnibox_trace"

// Constants of linux/netfilter/nf_tables.h that x/sys/unix does not define.
const (
	// tableFlagOwner makes the kernel delete the table when its socket is closed,
	// also after a kill. Kernels older than 5.12 refuse it.
	tableFlagOwner = 2
	tableOwner     = 7 // NFTA_TABLE_OWNER
	// tracePriority is lower than the priority of any other chain, so that the
	// trace shows these.
	tracePriority = math.MinInt32 + 1
)

// hookNames has the names of nftables' hooks by number (NF_INET_*, NF_BR_*). The
// chains of a trace table have these names.
func hookNames() [5]string {
	return [5]string{"prerouting", "input", "forward", "output", "postrouting"}
}

// Flow identifies the packets to trace, in both directions: TCP from the port ID
// and ICMP echo messages with the identifier ID.
type Flow struct {
	// From is the address of the flow's first sender.
	From netip.Addr
	ID   uint16
}

// MakeTraceTable makes the trace table of one family in the socket's namespace. It
// replaces the table of a trace that was killed. The error wraps ErrBusy if
// another trace is running.
func (c *Client) MakeTraceTable(ctx context.Context, family byte, f Flow) error {
	t := Table{Family: family, Name: TraceTable}
	flags := uint32(tableFlagOwner)
	for range Tries {
		err := c.Commit(ctx, 0, f.messages(t, flags)...)
		switch {
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EPERM): // EPERM: it has another owner
			err = c.DropTraceTable(ctx, family)
		case flags != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
			flags, err = 0, nil
		default:
			return nlconn.Explain(err, "make table "+t.String())
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("table %s: %w: another trace is being started", t, nlconn.ErrBusy)
}

// DropTraceTable deletes the trace table of one family. An absent table is not an
// error. If another program owns the table (NFT_TABLE_F_OWNER), the error wraps ErrBusy.
func (c *Client) DropTraceTable(ctx context.Context, family byte) error {
	t := Table{Family: family, Name: TraceTable}
	err := c.Commit(ctx, 0, t.Message(unix.NFT_MSG_DELTABLE, 0))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EPERM):
		switch held, failed := c.Exists(ctx, t.Message(unix.NFT_MSG_GETTABLE, 0)); {
		case held:
			return fmt.Errorf("table %s: %w: another trace is running", t, nlconn.ErrBusy)
		case failed == nil:
			return nil // the kernel removed it meanwhile, because its owner ended
		}
	}
	return nlconn.Explain(err, "delete table "+t.String())
}

// HasStrayTrace reports whether a killed trace left its table, as it can before Linux
// 5.12. A table with an owner belongs to a running one.
func (c *Client) HasStrayTrace(ctx context.Context, family byte) (bool, error) {
	t := Table{Family: family, Name: TraceTable}
	stray, _, err := Get(ctx, c, t.Message(unix.NFT_MSG_GETTABLE, 0), func(attrs []byte) (bool, error) {
		owner, err := nlconn.Find(attrs, tableOwner)
		return owner == nil, err
	})
	return stray, nlconn.Explain(err, "read table "+TraceTable)
}

// messages returns the requests that make the trace table: a chain on each hook,
// with rules that match the flow. They give no verdict.
func (f *Flow) messages(t Table, flags uint32) []nlconn.Message {
	m := t.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.Net32(unix.NFTA_TABLE_FLAGS, flags)
	msgs := []nlconn.Message{m}
	for hook, name := range hookNames() {
		chain := Chain{Name: name, Kind: "filter", Hook: uint32(hook), Priority: tracePriority}
		msgs = append(msgs, chain.Message(t))
		for _, rule := range f.rules() {
			msgs = append(msgs, rule.Message(t, name))
		}
	}
	return msgs
}

// rules returns a rule for each protocol and direction. The offsets are those of
// the sender's and the receiver's address (RFC 791, RFC 8200), of the ports of TCP and UDP
// (RFC 9293, RFC 768) and of the identifier of ICMP echo messages (RFC 792, RFC 4443).
func (f *Flow) rules() []Rule {
	ether, icmp, source, destination := uint16(unix.ETH_P_IP), byte(unix.IPPROTO_ICMP), uint32(12), uint32(16)
	if f.From.Is6() {
		ether, icmp, source, destination = unix.ETH_P_IPV6, unix.IPPROTO_ICMPV6, 8, 24
	}
	rule := func(proto byte, address, id uint32) Rule {
		return NewRule(CompareMeta(unix.NFT_META_PROTOCOL, unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, ether)), OfProtocol(proto), func(b *Builder) {
			b.Match(unix.NFT_PAYLOAD_NETWORK_HEADER, address, f.From.AsSlice())
			b.Match(unix.NFT_PAYLOAD_TRANSPORT_HEADER, id, binary.BigEndian.AppendUint16(nil, f.ID))
			b.Immediate(b.Next, []byte{1})
			b.SetMeta(unix.NFT_META_NFTRACE, b.Next)
		})
	}
	return []Rule{
		rule(unix.IPPROTO_TCP, source, 0), rule(unix.IPPROTO_TCP, destination, 2),
		rule(unix.IPPROTO_UDP, source, 0), rule(unix.IPPROTO_UDP, destination, 2),
		rule(icmp, source, 4), rule(icmp, destination, 4),
	}
}

// Traced is a message of the kernel about a packet that is traced: what a rule or
// a chain's policy decided.
type Traced struct {
	// Packet identifies the packet among those of one namespace.
	Packet uint32
	Table  Table
	Chain  string
	// Handle is the rule's. It is 0 for the policy of the chain.
	Handle  uint64
	Verdict string
	// In and Out are the indexes of the devices, or 0.
	In, Out int
	// Network and Transport are the beginnings of the packet's headers. Only the
	// first message of a chain on a hook has them.
	Network, Transport []byte
}

// IsTrace reports whether a message of the group NFNLGRP_NFTRACE is about a packet.
func IsTrace(kind uint16) bool { return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE }

// DecodeTraced reads the body of NFT_MSG_TRACE. The headers are slices of data.
func DecodeTraced(data []byte) (Traced, error) {
	if len(data) < 4 {
		return Traced{}, fmt.Errorf("trace of %d bytes: %w", len(data), nlconn.ErrDamaged)
	}
	e := Traced{Table: Table{Family: data[0]}}
	var kind, policy, id, in, out nlconn.BigEndian32
	err := nlconn.ReadAttrs(data[4:], []nlconn.Attr{
		{Kind: unix.NFTA_TRACE_TABLE, At: &e.Table.Name},
		{Kind: unix.NFTA_TRACE_CHAIN, At: &e.Chain},
		{Kind: unix.NFTA_TRACE_RULE_HANDLE, At: (*nlconn.BigEndian64)(&e.Handle)},
		{Kind: unix.NFTA_TRACE_TYPE, At: &kind},
		{Kind: unix.NFTA_TRACE_VERDICT, At: func(v []byte) error {
			verdict, err := decodeVerdict(v)
			e.Verdict = VerdictText(verdict)
			return err
		}},
		{Kind: unix.NFTA_TRACE_POLICY, At: &policy},
		{Kind: unix.NFTA_TRACE_ID, At: &id},
		{Kind: unix.NFTA_TRACE_IIF, At: &in},
		{Kind: unix.NFTA_TRACE_OIF, At: &out},
		{Kind: unix.NFTA_TRACE_NETWORK_HEADER, At: &e.Network},
		{Kind: unix.NFTA_TRACE_TRANSPORT_HEADER, At: &e.Transport},
	})
	e.Packet, e.In, e.Out = uint32(id), int(in), int(out)
	if kind == unix.NFT_TRACETYPE_POLICY {
		e.Verdict = VerdictText(binary.BigEndian.AppendUint32(nil, uint32(policy)))
	}
	return e, err
}

// Rule reads the rule of a traced message. It returns nil if the rule is gone.
func (c *Client) Rule(ctx context.Context, t Table, chain string, handle uint64) (*HeldRule, error) {
	m := t.RuleMessage(unix.NFT_MSG_GETRULE, 0, chain)
	m.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	r, _, err := Get(ctx, c, m, func(attrs []byte) (*HeldRule, error) {
		r, err := DecodeRule(t, attrs)
		r.Expressions = nil // slices of attrs
		return &r, err
	})
	return r, nlconn.Explain(err, "read rule of "+t.String())
}
