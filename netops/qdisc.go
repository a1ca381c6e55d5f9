package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Qdisc is a queueing discipline of a link (tc(8)). Kind "tbf" shapes the
// packets that the link sends. Kind "clsact" holds filters.
//
// A tbf replaces only the kernel's default qdisc. A clsact is added only if the
// link has neither a clsact nor an "ingress" qdisc. The change that adds it has
// an inverse, which deletes it if it has no filters.
type Qdisc struct {
	In   Place  `json:"in"`
	Link string `json:"link"`
	Kind string `json:"kind"`
	TBF  *TBF   `json:"tbf,omitempty"`
	// Index is the link's index in an inverse. A later link with the same
	// name must not be changed.
	Index int `json:"index,omitempty"`
}

// TBF is a token bucket filter (tc-tbf(8)). The link can send Burst bytes at
// once, and then Rate bytes a second. At most Limit bytes wait in the queue. The
// kernel drops packets that exceed the queue or are longer than Burst.
type TBF struct {
	Rate  uint64 `json:"rate"`
	Burst uint32 `json:"burst"`
	Limit uint32 `json:"limit"`
}

// Kinds of queueing disciplines, as the kernel names them.
const (
	kindTBF    = "tbf"
	kindClsact = "clsact"
	// kindIngress is the older alternative to clsact.
	kindIngress = "ingress"
)

// Where returns the namespace of the link.
func (q *Qdisc) Where() Place { return q.In }

// IsShared returns false: a qdisc is deleted with its link.
func (q *Qdisc) IsShared() bool { return false }

// String formats the qdisc as tc qdisc does.
func (q *Qdisc) String() string {
	w := words{"qdisc", q.Kind, "dev", q.Link}
	w.place(q.In)
	if t := q.TBF; t != nil {
		w = append(w, "root", "rate", rateText(t.Rate), "burst", sizeText(uint64(t.Burst)), "limit", sizeText(uint64(t.Limit)))
	}
	return w.String()
}

// rateText formats a rate in bytes per second as tc does: in bits per second,
// with powers of 1000.
func rateText(rate uint64) string {
	switch bits := rate * 8; {
	case rate > 1<<60: // the number of bits would overflow
		return strconv.FormatUint(rate, 10) + "bps"
	case bits%1e9 == 0:
		return strconv.FormatUint(bits/1e9, 10) + "Gbit"
	case bits%1e6 == 0:
		return strconv.FormatUint(bits/1e6, 10) + "Mbit"
	case bits%1e3 == 0:
		return strconv.FormatUint(bits/1e3, 10) + "Kbit"
	default:
		return strconv.FormatUint(bits, 10) + "bit"
	}
}

// sizeText formats a number of bytes as tc does: with powers of 1024.
func sizeText(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatUint(n>>20, 10) + "Mb"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatUint(n>>10, 10) + "Kb"
	}
	return strconv.FormatUint(n, 10) + "b"
}

func (q *Qdisc) validate() error {
	errs := []error{checkPlace(q.In), rtnl.CheckName(q.Link), rtnl.CheckRange("index", q.Index, 0, 1<<31-1)}
	if q.Kind != kindTBF && q.Kind != kindClsact {
		errs = append(errs, fmt.Errorf("qdisc of kind %q: %w", q.Kind, ErrInvalid))
	}
	if t := q.TBF; t != nil && q.Kind != kindTBF {
		errs = append(errs, fmt.Errorf("a rate of a qdisc of kind %q: %w", q.Kind, ErrInvalid))
	} else if t != nil && (t.Rate == 0 || t.Burst == 0 || t.Limit == 0) {
		errs = append(errs, fmt.Errorf("tbf of rate %d, burst %d, limit %d: %w", t.Rate, t.Burst, t.Limit, ErrInvalid))
	}
	return errors.Join(errs...)
}

func (q *Qdisc) plan(ctx context.Context, s *session) ([]Change, error) {
	if q.Kind == kindTBF && q.TBF == nil {
		return nil, fmt.Errorf("%s without a rate: %w", q, ErrInvalid)
	}
	c := Change{Do: Step{VerbAdd, q}}
	index, err := s.baseIndex(ctx, q.In, q.Link)
	if err != nil {
		return nil, err
	}
	if index == 0 {
		return []Change{c}, nil
	}
	have, err := s.qdisc(ctx, q.In, index, q.parent())
	switch {
	case err != nil:
		return nil, err
	case have.kind != "" && q.Kind == kindClsact:
		return nil, nil
	case have.kind != "":
		return nil, fmt.Errorf("%s: a qdisc %s %w", q, have, ErrExists)
	}
	c.Undo = &Step{VerbDel, &Qdisc{In: q.In, Link: q.Link, Kind: q.Kind, Index: index}}
	return []Change{c}, nil
}

func (q *Qdisc) verify(ctx context.Context, s *session) ([]Difference, error) {
	index, err := s.ownIndex(ctx, q.In, q.Link, 0)
	if err != nil || index == 0 {
		return absentIf(err, q)
	}
	have, err := s.qdisc(ctx, q.In, index, q.parent())
	if err != nil || have.kind == "" {
		return absentIf(err, q)
	}
	d := differences{object: q}
	if q.Kind == kindClsact {
		if have.kind != kindClsact && have.kind != kindIngress {
			d.compare("kind", q.Kind, have.kind)
		}
		return d.list, nil
	}
	d.compare("kind", q.Kind, have.kind)
	if q.TBF != nil && len(d.list) == 0 {
		q.TBF.verify(have, &d)
	}
	return d.list, nil
}

// verify compares a tbf with the kernel's. The kernel reports the burst as a
// duration in ticks, of which it keeps the lower 32 bits.
func (t *TBF) verify(have tcQdisc, d *differences) {
	d.compare("rate", rateText(t.Rate), rateText(have.rate))
	d.compare("limit", sizeText(uint64(t.Limit)), sizeText(uint64(have.limit)))
	want := t.ticks()
	off := math.Abs(float64(int32(have.buffer - uint32(want))))
	// Some programs round to microseconds, and the kernel's division is
	// inexact.
	if have.rate == t.Rate && off > 2*ticksPerMicrosecond+float64(want)*1e-6 {
		burst := float64(have.buffer) / ticksPerMicrosecond / 1e6 * float64(have.rate)
		d.add("burst "+sizeText(uint64(t.Burst)), "burst "+strconv.FormatFloat(burst, 'g', 4, 64)+"b")
	}
}

// ticksPerMicrosecond is the clock rate of the kernel's packet schedulers
// (PSCHED_SHIFT, /proc/net/psched). A tick is 64 ns.
const ticksPerMicrosecond = 15.625

// ticks returns how long sending the burst takes at the rate.
func (t *TBF) ticks() uint64 {
	return uint64(float64(t.Burst) / float64(t.Rate) * 1e6 * ticksPerMicrosecond)
}

func (q *Qdisc) links() []string { return []string{q.Link} }

// messages returns the requests that add the qdisc, or delete it if cnibox added
// it.
func (q *Qdisc) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	if v == VerbDel {
		return q.deletion(ctx, s)
	}
	index, err := s.indexOf(ctx, q.In, q.Link)
	if err != nil {
		return nil, err
	}
	return []nlconn.Message{q.request(unix.RTM_NEWQDISC, index)}, nil
}

// deletion returns the request that deletes the qdisc. It returns none if the
// link was replaced, if another qdisc replaced this one, or if it has other
// programs' filters.
func (q *Qdisc) deletion(ctx context.Context, s *session) ([]nlconn.Message, error) {
	index, err := s.ownIndex(ctx, q.In, q.Link, q.Index)
	if err != nil || index == 0 {
		return nil, err
	}
	have, err := s.qdisc(ctx, q.In, index, q.parent())
	if err != nil || have.kind != q.Kind || q.Kind == kindTBF && have.handle != tbfHandle {
		return nil, err
	}
	if q.Kind == kindClsact {
		for _, parent := range []uint32{ingressFilters, egressFilters} {
			others, err := s.filters(ctx, q.In, index, parent)
			if err != nil || len(others) > 0 {
				return nil, err
			}
		}
	}
	return []nlconn.Message{q.request(unix.RTM_DELQDISC, index)}, nil
}

// baseIndex returns the index of the link that an object is added to. It returns
// 0 for a link that does not exist yet: this plan creates it, or an earlier
// plugin's plan does and the container is absent.
func (s *session) baseIndex(ctx context.Context, p Place, link string) (int, error) {
	if s.isNew(p, link) {
		return 0, nil
	}
	index, err := s.indexOf(ctx, p, link)
	if s.container == nil && errors.Is(err, ErrNotExist) {
		return 0, nil
	}
	return index, err
}

// ownIndex returns the index of the link that an object was added to. It is
// index, or the index of the named link if index is 0. It returns 0 without an
// error if the link is absent.
func (s *session) ownIndex(ctx context.Context, p Place, name string, index int) (int, error) {
	c, err := s.conn(p)
	if err != nil {
		return 0, err
	}
	var have *rtnl.Link
	if index != 0 {
		have, err = c.LinkByIndex(ctx, index)
	} else {
		have, err = c.Link(ctx, name)
	}
	if errors.Is(err, ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return have.Index, nil
}

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
