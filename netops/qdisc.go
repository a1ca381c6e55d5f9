package netops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Qdisc is a queueing discipline of a link (tc(8)): of Kind "tbf", for what the
// link sends, or "clsact", the place of filters.
//
// A tbf is only made where the kernel's default is, never in another's place. A
// clsact is only made where there is none, nor an "ingress" in its place; that
// one made it is in the inverse, which deletes it if no filter is left on it.
type Qdisc struct {
	In   Place  `json:"in"`
	Link string `json:"link"`
	Kind string `json:"kind"`
	TBF  *TBF   `json:"tbf,omitempty"`
	// Index is the link's, in an inverse: a later link of its name is another's.
	Index int `json:"index,omitempty"`
}

// TBF is a token bucket (tc-tbf(8)): Burst bytes may leave at once, then Rate
// bytes a second, while up to Limit bytes wait. More than that, and packets
// longer than Burst, are dropped.
type TBF struct {
	Rate  uint64 `json:"rate"`
	Burst uint32 `json:"burst"`
	Limit uint32 `json:"limit"`
}

// Kinds of queueing disciplines, as the kernel names them.
const (
	kindTBF    = "tbf"
	kindClsact = "clsact"
	// kindIngress is the older one in the place of clsact.
	kindIngress = "ingress"
)

// Where is the namespace of the link.
func (q *Qdisc) Where() Place { return q.In }

// IsShared is false: a qdisc goes with its link.
func (q *Qdisc) IsShared() bool { return false }

func (q *Qdisc) object() {}

// String is the qdisc in the form of tc qdisc.
func (q *Qdisc) String() string {
	w := words{"qdisc", q.Kind, "dev", q.Link}
	w.place(q.In)
	if t := q.TBF; t != nil {
		w = append(w, "root", "rate", rateText(t.Rate), "burst", sizeText(uint64(t.Burst)), "limit", sizeText(uint64(t.Limit)))
	}
	return w.String()
}

// rateText is a rate in bytes as tc has it: in bits, by powers of 1000.
func rateText(rate uint64) string {
	switch bits := rate * 8; {
	case rate > 1<<60: // more bits than a number holds
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

// sizeText is a number of bytes as tc has it: by powers of 1024.
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

// verify compares what the kernel tells of a tbf. Of the burst it tells how
// long that lasts, in ticks, of which it keeps the lower half.
func (t *TBF) verify(have tcQdisc, d *differences) {
	d.compare("rate", rateText(t.Rate), rateText(have.rate))
	d.compare("limit", sizeText(uint64(t.Limit)), sizeText(uint64(have.limit)))
	want := t.ticks()
	off := math.Abs(float64(int32(have.buffer - uint32(want))))
	// Some round to microseconds, and the kernel divides by a multiplication.
	if have.rate == t.Rate && off > 2*ticksPerMicrosecond+float64(want)*1e-6 {
		burst := float64(have.buffer) / ticksPerMicrosecond / 1e6 * float64(have.rate)
		d.add("burst "+sizeText(uint64(t.Burst)), "burst "+strconv.FormatFloat(burst, 'g', 4, 64)+"b")
	}
}

// ticksPerMicrosecond is the clock of the kernel's packet schedulers
// (PSCHED_SHIFT, /proc/net/psched): a tick is 64 ns.
const ticksPerMicrosecond = 15.625

// ticks is how long the burst takes at the rate.
func (t *TBF) ticks() uint64 {
	return uint64(float64(t.Burst) / float64(t.Rate) * 1e6 * ticksPerMicrosecond)
}

// messages are the requests that add the qdisc, or delete it if it is the one
// that was made.
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

// deletion is the request that deletes the qdisc, or none: where the link is
// not the one that it was made on, where another qdisc is in its place, and
// where others have filters on it.
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

// baseIndex is the index of the link that something is to be made on, 0 for one
// that is to be made itself: by this plan, or by that of an earlier plugin where
// there is no container yet.
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

// ownIndex is the index of the link that something was made on: index, unless
// that is 0 and the link is found by its name. 0 is none, success for who deletes.
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
