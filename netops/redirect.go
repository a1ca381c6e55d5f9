package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Redirect sends all packets that Link receives to the link To (tc-mirred(8)).
// To is an ifb: its qdisc shapes the packets, and it then returns them to Link.
// The redirect is a filter of Link's clsact or ingress qdisc. It has the lowest
// priority, because no later filter sees redirected packets.
type Redirect struct {
	In   Place  `json:"in"`
	Link string `json:"link"`
	To   string `json:"to"`
	// Index is the index of Link in an inverse. A later link with the same
	// name must not be changed.
	Index int `json:"index,omitempty"`
}

// Where returns the namespace of the links.
func (r *Redirect) Where() Place { return r.In }

// IsShared returns false: a filter is deleted with its link.
func (r *Redirect) IsShared() bool { return false }

// String formats the filter as tc filter does.
func (r *Redirect) String() string {
	w := words{"filter", "dev", r.Link}
	w.place(r.In)
	return append(w, "ingress", "pref", fmt.Sprint(redirectPref), "u32", "action", "mirred", "egress", "redirect", "dev", r.To).String()
}

func (r *Redirect) validate() error {
	return errors.Join(checkPlace(r.In), rtnl.CheckName(r.Link), rtnl.CheckName(r.To), rtnl.CheckRange("index", r.Index, 0, 1<<31-1))
}

func (r *Redirect) plan(ctx context.Context, s *session) ([]Change, error) {
	c := Change{Do: Step{VerbAdd, r}}
	index, err := s.baseIndex(ctx, r.In, r.Link)
	if err != nil {
		return nil, err
	}
	if index == 0 {
		return []Change{c}, nil
	}
	c.Undo = &Step{VerbDel, &Redirect{In: r.In, Link: r.Link, To: r.To, Index: index}}
	return []Change{c}, nil
}

func (r *Redirect) verify(ctx context.Context, s *session) ([]Difference, error) {
	index, err := s.ownIndex(ctx, r.In, r.Link, 0)
	if err != nil || index == 0 {
		return absentIf(err, r)
	}
	to, err := s.ownIndex(ctx, r.In, r.To, 0)
	if err != nil || to == 0 {
		return absentIf(err, r)
	}
	have, err := s.filters(ctx, r.In, index, ingressFilters)
	if err != nil || !slices.ContainsFunc(have, func(f tcFilter) bool { return f.redirects && f.to == to }) {
		return absentIf(err, r)
	}
	return nil, nil
}

func (r *Redirect) links() []string { return []string{r.Link, r.To} }

// messages returns the requests that add the filter, or delete it if cnibox
// added it.
func (r *Redirect) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	if v == VerbDel {
		return r.deletions(ctx, s)
	}
	index, err := s.indexOf(ctx, r.In, r.Link)
	if err != nil {
		return nil, err
	}
	to, err := s.indexOf(ctx, r.In, r.To)
	if err != nil {
		return nil, err
	}
	m := filterRequest(unix.RTM_NEWTFILTER, index, 0)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	addRedirect(&m.Body, to)
	return []nlconn.Message{m}, nil
}

// deletions returns the requests that delete the filter. Among the filters with
// redirectPref they delete those that redirect to To or to an absent link.
func (r *Redirect) deletions(ctx context.Context, s *session) ([]nlconn.Message, error) {
	index, err := s.ownIndex(ctx, r.In, r.Link, r.Index)
	if err != nil || index == 0 {
		return nil, err
	}
	to, err := s.ownIndex(ctx, r.In, r.To, 0)
	if err != nil {
		return nil, err
	}
	have, err := s.filters(ctx, r.In, index, ingressFilters)
	if err != nil {
		return nil, err
	}
	var own []nlconn.Message
	others := false
	for _, f := range have {
		switch {
		case f.pref != redirectPref || f.isTable():
		case f.kind == kindU32 && f.redirects && (f.to == to || f.to == 0):
			own = append(own, filterRequest(unix.RTM_DELTFILTER, index, f.handle))
		default:
			others = true
		}
	}
	if len(own) > 0 && !others { // delete the u32 hash table too
		return []nlconn.Message{filterRequest(unix.RTM_DELTFILTER, index, 0)}, nil
	}
	return own, nil
}

const (
	// redirectPref is greater than the preferences that the kernel assigns
	// (49152 and below).
	redirectPref = 65000
	kindU32      = "u32"
	kindMirred   = "mirred"
	// egressRedirect is TCA_EGRESS_REDIR (linux/tc_act/tc_mirred.h). stolen
	// is TC_ACT_STOLEN (linux/pkt_cls.h): the kernel does not process the
	// packet further.
	egressRedirect = 1
	stolen         = 4
	// sizeofMirred is the size of struct tc_mirred. The library's type is
	// larger.
	sizeofMirred = 28
)

// filterRequest adds or deletes cnibox's filter on a link's ingress.
func filterRequest(kind uint16, index int, handle uint32) nlconn.Message {
	var all [2]byte // the protocol is in network byte order
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	m := nlconn.Message{Kind: kind, Header: &nl.TcMsg{
		Ifindex: int32(index), Parent: ingressFilters, Handle: handle,
		Info: redirectPref<<16 | uint32(binary.NativeEndian.Uint16(all[:])),
	}}
	m.Text(nl.TCA_KIND, kindU32)
	return m
}

// addRedirect appends the TCA_OPTIONS of a u32 filter that matches all packets and
// redirects them to the link with index to.
func addRedirect(b *nlconn.Body, to int) {
	all := &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Nkeys: 1, Keys: make([]nl.TcU32Key, 1)}
	parms := make([]byte, sizeofMirred)
	binary.NativeEndian.PutUint32(parms[8:], stolen)
	binary.NativeEndian.PutUint32(parms[20:], egressRedirect)
	binary.NativeEndian.PutUint32(parms[24:], uint32(to))
	b.Nest(nl.TCA_OPTIONS, func() {
		b.Bytes(nl.TCA_U32_SEL, all.Serialize())
		b.Nest(nl.TCA_U32_ACT, func() {
			b.Nest(nl.TCA_ACT_TAB, func() {
				b.Text(nl.TCA_ACT_KIND, kindMirred)
				b.Nest(nl.TCA_ACT_OPTIONS, func() { b.Bytes(nl.TCA_MIRRED_PARMS, parms) })
			})
		})
	})
}

// tcFilter is a filter as the kernel reports it.
type tcFilter struct {
	kind   string
	handle uint32
	pref   uint16
	// redirects reports whether the first action redirects packets to the
	// link with the index to. That index is 0 if the link was deleted.
	redirects bool
	to        int
}

// isTable reports whether f is the hash table of u32 filters instead of a
// filter.
func (f *tcFilter) isTable() bool { return f.kind == kindU32 && f.handle&0xfff == 0 }

// filters reads the filters at one parent of a link's clsact or ingress qdisc.
// It returns none if the link has no such qdisc.
func (s *session) filters(ctx context.Context, p Place, index int, parent uint32) ([]tcFilter, error) {
	c, err := s.conn(p)
	if err != nil {
		return nil, err
	}
	m := nlconn.Message{Kind: unix.RTM_GETTFILTER, Header: &nl.TcMsg{Ifindex: int32(index), Parent: parent}}
	all, err := nlconn.List(ctx, c.Conn, m, func(data []byte) (tcFilter, bool, error) {
		f, err := parseFilter(data)
		return f, f.handle != 0, err
	})
	return all, nlconn.Explain(err, fmt.Sprintf("filters of link %d", index))
}

// parseFilter parses the body of RTM_NEWTFILTER. The message that represents all
// filters of one preference has no handle.
func parseFilter(b []byte) (f tcFilter, err error) {
	if len(b) < nl.SizeofTcMsg {
		return f, fmt.Errorf("filter message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	f.handle = binary.NativeEndian.Uint32(b[8:])
	f.pref = uint16(binary.NativeEndian.Uint32(b[16:]) >> 16)
	var options []byte
	err = nlconn.ReadAttrs(b[nl.SizeofTcMsg:], []nlconn.Attr{{Kind: nl.TCA_KIND, At: &f.kind}, {Kind: nl.TCA_OPTIONS, At: &options}})
	if err != nil || f.kind != kindU32 {
		return f, err
	}
	parms, err := nlconn.Find(options, nl.TCA_U32_ACT, nl.TCA_ACT_TAB, nl.TCA_ACT_OPTIONS, nl.TCA_MIRRED_PARMS)
	if err != nil || len(parms) < sizeofMirred {
		return f, err
	}
	f.redirects = binary.NativeEndian.Uint32(parms[20:]) == egressRedirect
	f.to = int(binary.NativeEndian.Uint32(parms[24:]))
	return f, nil
}

// Redirects returns the links to which a link of ns redirects some or all
// received packets. A nil ns is the host's namespace. The error wraps
// ErrNotExist if the link is absent.
func (n *Net) Redirects(ctx context.Context, ns *Namespace, link string) ([]string, error) {
	if err := rtnl.CheckName(link); err != nil {
		return nil, err
	}
	s, place := n.session(ns), Host
	if ns != nil {
		place = Container
	}
	index, err := s.indexOf(ctx, place, link)
	if err != nil {
		return nil, err
	}
	have, err := s.filters(ctx, place, index, ingressFilters)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range have {
		name, err := s.linkName(ctx, place, f.to)
		if err != nil {
			return nil, err
		}
		if f.redirects && name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}
