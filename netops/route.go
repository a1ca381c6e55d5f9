package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Where returns the namespace of the route's link.
func (r *Route) Where() Place { return r.In }

// IsShared reports whether attachments share the route.
func (r *Route) IsShared() bool { return r.Shared }

func (r *Route) jsonKey() string { return "route" }

// String formats the route as ip route does.
func (r *Route) String() string {
	dst := r.Dst.String()
	if r.Dst.Bits() == 0 {
		dst = "default"
	}
	w := words{"route"}
	if r.Absent {
		w = words{"no", "route"}
	}
	w.flag(r.Local, "local")
	w = append(w, dst)
	if r.Via.IsValid() {
		w = append(w, "via", r.Via.String())
	}
	w.value("dev", r.Link)
	w.place(r.In)
	w.flag(r.Dst.Bits() == 0 && r.Dst.Addr().Is6(), "inet6")
	if r.Src.IsValid() {
		w = append(w, "src", r.Src.String())
	}
	w.number("metric", r.Priority)
	w.number("table", r.Table)
	w.number("proto", r.Protocol)
	if r.Scope != nil {
		w = append(w, "scope", fmt.Sprint(*r.Scope))
	}
	w.number("mtu", r.MTU)
	w.number("advmss", r.AdvMSS)
	w.flag(r.OnLink, "onlink")
	return w.String()
}

func (r *Route) validate() error {
	errs := []error{
		checkPlace(r.In), rtnl.CheckName(r.Link), checkPrefix("route", r.Dst),
		checkAddr("via", r.Via), checkAddr("src", r.Src), rtnl.CheckMTU(r.MTU), rtnl.CheckMTU(r.AdvMSS),
		rtnl.CheckRange("priority", r.Priority, 0, 1<<32-1), rtnl.CheckRange("table", r.Table, 0, 1<<32-1),
		rtnl.CheckRange("protocol", r.Protocol, 0, 255), checkIndex(r.LinkIndex), r.validateAbsent(),
	}
	if r.Scope != nil {
		errs = append(errs, rtnl.CheckRange("scope", *r.Scope, 0, 255))
	}
	if r.Local && (r.Via.IsValid() || r.Table != 0) {
		errs = append(errs, fmt.Errorf("local route %s with a gateway or table: %w", r.Dst, ErrInvalid))
	}
	if r.Dst.IsValid() && r.Via.IsValid() && r.Dst.Addr().Is6() && r.Via.Is4() {
		errs = append(errs, fmt.Errorf("route %s via %s: %w", r.Dst, r.Via, ErrInvalid))
	}
	if r.Dst.IsValid() && r.Src.IsValid() && r.Dst.Addr().Is4() != r.Src.Is4() {
		errs = append(errs, fmt.Errorf("route %s src %s: %w", r.Dst, r.Src, ErrInvalid))
	}
	return errors.Join(errs...)
}

func (r *Route) table() int {
	switch {
	case r.Local:
		return unix.RT_TABLE_LOCAL
	case r.Table == 0:
		return unix.RT_TABLE_MAIN
	}
	return r.Table
}

func (r *Route) plan(ctx context.Context, s *session) ([]Change, error) {
	if r.Absent {
		return r.planAbsent(ctx, s)
	}
	c := Change{Do: Step{VerbAdd, r}}
	if s.isNew(r.In, r.Link) {
		return []Change{c}, nil
	}
	have, err := s.routesLike(ctx, r, r.table())
	if err != nil {
		return nil, err
	}
	stays := func(h rtnl.Route) bool { return r.matches(h) && !s.leaving[leaving{linkRef{r.In, r.Link}, h}] }
	if slices.ContainsFunc(have, stays) {
		if !r.Shared {
			return nil, fmt.Errorf("%s %w", r, ErrExists)
		}
		return nil, nil
	}
	if !r.Shared {
		c.Undo = &Step{VerbDel, r}
	}
	return []Change{c}, nil
}

// matches compares the fields by which the kernel identifies a route. A metric of 0
// matches any metric, because the kernel chooses a metric for IPv6.
func (r *Route) matches(have rtnl.Route) bool {
	return have.Dst == r.Dst.Masked() && have.Via == r.Via && (r.Priority == 0 || have.Priority == r.Priority)
}

// verify looks in all tables if the Spec names none, because a chained plugin
// can move the route to another table.
func (r *Route) verify(ctx context.Context, s *session) ([]Difference, error) {
	if r.Absent {
		return r.verifyAbsent(ctx, s)
	}
	all, err := s.routesLike(ctx, r, r.Table)
	if errors.Is(err, ErrNotExist) {
		return absentIf(nil, r)
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, r.matches)
	if i < 0 {
		return absentIf(nil, r)
	}
	have, d := all[i], differences{object: r}
	if r.MTU != 0 {
		d.compare("mtu", fmt.Sprint(r.MTU), fmt.Sprint(have.MTU))
	}
	if r.AdvMSS != 0 {
		d.compare("advmss", fmt.Sprint(r.AdvMSS), fmt.Sprint(have.AdvMSS))
	}
	if r.Src.IsValid() {
		src := ""
		if have.Src.IsValid() {
			src = have.Src.String()
		}
		d.compare("src", r.Src.String(), src)
	}
	if r.Scope != nil && r.Dst.Addr().Is4() {
		d.compare("scope", fmt.Sprint(*r.Scope), fmt.Sprint(have.Scope))
	}
	return d.list, nil
}

func (r *Route) apply(ctx context.Context, run *applier, batch []Change) error {
	return run.requests(ctx, batch)
}

// undo ignores a route that the kernel refuses because its gateway, its source address or
// the state of its link is gone.
func (r *Route) undo(ctx context.Context, s *session, v Verb) error {
	err := s.request(ctx, r, v)
	if v == VerbAdd && (isInvalid(err) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETDOWN)) {
		return nil
	}
	return err
}

func (r *Route) links() []string { return []string{r.Link} }

// messages returns the requests that add or delete the route.
func (r *Route) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	index, err := s.indexOf(ctx, r.In, r.Link)
	if err != nil {
		return nil, err
	}
	if r.LinkIndex != 0 && r.LinkIndex != index {
		return nil, fmt.Errorf("link %d %q: %w", r.LinkIndex, r.Link, ErrNotExist)
	}
	rtm := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: rtnl.Family(r.Dst.Addr()), Dst_len: uint8(r.Dst.Bits()),
		Table: unix.RT_TABLE_UNSPEC, Scope: unix.RT_SCOPE_NOWHERE, Protocol: uint8(r.Protocol),
	}}
	m := nlconn.Message{Kind: unix.RTM_DELROUTE, Data: []nl.NetlinkRequestData{
		rtm,
		nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(r.table()))),
		nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))),
	}}
	if r.Dst.Bits() > 0 {
		m.Data = append(m.Data, nl.NewRtAttr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()))
	}
	if r.Via.IsValid() {
		m.Data = append(m.Data, viaAttr(r.Via, r.Dst.Addr().Is4()))
	}
	if r.Priority != 0 {
		m.Data = append(m.Data, nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Priority))))
	}
	if v == VerbDel {
		return []nlconn.Message{m}, nil
	}
	m.Kind, m.Flags = unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND
	if r.Shared {
		m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	rtm.Type, rtm.Scope = unix.RTN_UNICAST, r.scope()
	if r.Local {
		rtm.Type = unix.RTN_LOCAL
	}
	if r.Protocol == 0 {
		rtm.Protocol = unix.RTPROT_BOOT
	}
	if r.OnLink {
		rtm.Flags |= unix.RTNH_F_ONLINK
	}
	if r.Src.IsValid() {
		m.Data = append(m.Data, nl.NewRtAttr(unix.RTA_PREFSRC, r.Src.AsSlice()))
	}
	if r.MTU != 0 || r.AdvMSS != 0 {
		m.Data = append(m.Data, r.metrics())
	}
	return []nlconn.Message{m}, nil
}

func (r *Route) scope() uint8 {
	switch {
	case r.Scope != nil:
		return uint8(*r.Scope)
	case r.Local:
		return unix.RT_SCOPE_HOST
	case r.Via.IsValid():
		return unix.RT_SCOPE_UNIVERSE
	}
	return unix.RT_SCOPE_LINK
}

func (r *Route) metrics() *nl.RtAttr {
	attr := nl.NewRtAttr(unix.RTA_METRICS, nil)
	if r.MTU != 0 {
		attr.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
	}
	if r.AdvMSS != 0 {
		attr.AddRtAttr(unix.RTAX_ADVMSS, nl.Uint32Attr(uint32(r.AdvMSS)))
	}
	return attr
}

// viaAttr encodes a gateway. An IPv4 route with an IPv6 gateway needs RTA_VIA.
func viaAttr(via netip.Addr, ipv4 bool) *nl.RtAttr {
	if via.Is4() == ipv4 {
		return nl.NewRtAttr(unix.RTA_GATEWAY, via.AsSlice())
	}
	return nl.NewRtAttr(unix.RTA_VIA, append(nl.Uint16Attr(unix.AF_INET6), via.AsSlice()...))
}

// routes reads the routes over a link in one table, or in all tables for 0.
func (s *session) routes(ctx context.Context, p Place, link string, table int) ([]rtnl.Route, error) {
	index, c, err := s.linkConn(ctx, p, link)
	if err != nil {
		return nil, err
	}
	return c.Routes(ctx, index, table)
}
