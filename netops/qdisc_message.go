package netops

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Parents and handles of qdiscs (linux/pkt_sched.h).
const (
	// rootParent is TC_H_ROOT: the qdisc for packets that a link sends.
	rootParent = 1<<32 - 1
	// hookParent is TC_H_CLSACT and TC_H_INGRESS: the parent of clsact and
	// ingress.
	hookParent = 0xfffffff1
	hookHandle = 0xffff0000
	// ingressFilters and egressFilters are the parents of a clsact's
	// filters. An ingress qdisc accepts either for its single list of
	// filters.
	ingressFilters = 0xfffffff2
	egressFilters  = 0xfffffff3
	// tbfHandle identifies cnibox's tbf. It is below the handles that the
	// kernel assigns.
	tbfHandle = 0x0cb1 << 16
)

func (q *Qdisc) parent() uint32 {
	if q.Kind == kindClsact {
		return hookParent
	}
	return rootParent
}

// request adds or deletes the qdisc. Adding a tbf fails if one exists. Adding a
// clsact succeeds if another program added one meanwhile.
func (q *Qdisc) request(kind uint16, index int) nlconn.Message {
	tc := &nl.TcMsg{Ifindex: int32(index), Parent: q.parent(), Handle: hookHandle}
	m := nlconn.Message{Kind: kind, Header: tc}
	m.Text(nl.TCA_KIND, q.Kind)
	if q.Kind == kindTBF {
		tc.Handle = tbfHandle
	}
	if kind == unix.RTM_DELQDISC {
		return m
	}
	m.Flags = unix.NLM_F_CREATE
	if q.TBF != nil {
		m.Flags |= unix.NLM_F_EXCL
		m.Nest(nl.TCA_OPTIONS, func() { q.TBF.addOptions(&m.Body) })
	}
	return m
}

// ethernet is TC_LINKLAYER_ETHERNET: packet lengths need no conversion and no
// rate table.
const ethernet = 1

// addOptions appends the attributes of the tbf's TCA_OPTIONS.
func (t *TBF) addOptions(b *nlconn.Body) {
	parms := &nl.TcTbfQopt{
		Rate:  nl.TcRateSpec{Linklayer: ethernet, Rate: uint32(min(t.Rate, 1<<32-1))},
		Limit: t.Limit,
	}
	b.Bytes(nl.TCA_TBF_PARMS, parms.Serialize())
	b.Uint32(nl.TCA_TBF_BURST, t.Burst)
	if t.Rate >= 1<<32 {
		b.Bytes(nl.TCA_TBF_RATE64, nl.Uint64Attr(t.Rate))
	}
}

// tcQdisc is a qdisc as the kernel reports it. The kind is empty for the default
// qdisc and if there is none. The fields after handle belong to a tbf.
type tcQdisc struct {
	kind   string
	handle uint32
	rate   uint64
	// buffer is the burst in ticks.
	limit, buffer uint32
}

// String identifies the qdisc in errors.
func (q tcQdisc) String() string { return fmt.Sprintf("%s %x:", q.kind, q.handle>>16) }

// qdisc reads a link's qdisc at one parent.
func (s *session) qdisc(ctx context.Context, p Place, index int, parent uint32) (q tcQdisc, err error) {
	c, err := s.conn(p)
	if err != nil {
		return q, err
	}
	// Without NLM_F_ECHO kernels before 6.8 send the answer to all listeners
	// except the requester.
	m := nlconn.Message{Kind: unix.RTM_GETQDISC, Flags: unix.NLM_F_ECHO, Header: &nl.TcMsg{Ifindex: int32(index), Parent: parent}}
	err = c.Ask(ctx, m, func(_ uint16, data []byte) (err error) {
		q, err = parseQdisc(data)
		return err
	})
	if nlconn.IsAbsent(err) {
		return tcQdisc{}, nil
	}
	return q, nlconn.Explain(err, fmt.Sprintf("qdisc of link %d", index))
}

// parseQdisc parses the body of RTM_NEWQDISC. The default qdisc has no handle.
func parseQdisc(b []byte) (q tcQdisc, err error) {
	if len(b) < nl.SizeofTcMsg {
		return q, fmt.Errorf("qdisc message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	q.handle = binary.NativeEndian.Uint32(b[8:])
	var options []byte
	err = nlconn.ReadAttrs(b[nl.SizeofTcMsg:], []nlconn.Attr{{Kind: nl.TCA_KIND, At: &q.kind}, {Kind: nl.TCA_OPTIONS, At: &options}})
	switch {
	case err != nil || q.handle == 0:
		return tcQdisc{}, err
	case q.kind != kindTBF:
		return q, nil
	}
	return q, nlconn.EachAttr(options, func(kind uint16, v []byte) error {
		switch {
		case kind == nl.TCA_TBF_PARMS && len(v) >= nl.SizeofTcTbfQopt:
			q.rate = max(q.rate, uint64(binary.NativeEndian.Uint32(v[8:])))
			q.limit = binary.NativeEndian.Uint32(v[24:])
			q.buffer = binary.NativeEndian.Uint32(v[28:])
		case kind == nl.TCA_TBF_RATE64 && len(v) >= 8:
			q.rate = binary.NativeEndian.Uint64(v)
		}
		return nil
	})
}
