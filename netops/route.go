package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Route is a route over a link. Routes are appended, so that two attachments of
// one container can each add a default route.
type Route struct {
	In     Place        `json:"in"`
	Shared bool         `json:"shared,omitempty"`
	Link   string       `json:"link"`
	Dst    netip.Prefix `json:"dst"`
	Via    netip.Addr   `json:"via,omitzero"`
	Src    netip.Addr   `json:"src,omitzero"`
	MTU    int          `json:"mtu,omitempty"`
	AdvMSS int          `json:"advmss,omitempty"`
	// Priority is the metric. For 0 the kernel chooses.
	Priority int `json:"priority,omitempty"`
	// Table is the routing table number. 0 means main.
	Table int `json:"table,omitempty"`
	// Protocol is the origin of the route, RTPROT_*. 0 means boot. When an
	// address is deleted, the kernel deletes only routes of RTPROT_KERNEL
	// (2).
	Protocol int `json:"protocol,omitempty"`
	// Scope is RT_SCOPE_*. nil means universe with a gateway and link
	// without.
	Scope  *int `json:"scope,omitempty"`
	OnLink bool `json:"onlink,omitempty"`
	// Local makes it a local route: the node accepts packets to Dst. The
	// route is in the table local and has no gateway.
	Local bool `json:"local,omitempty"`
	// Absent requires that the route does not exist. An existing route is
	// deleted, and the inverse restores it.
	Absent bool `json:"absent,omitempty"`
	// LinkIndex identifies the link on which an inverse restores the route.
	// Another link can have the name by then.
	LinkIndex int `json:"linkIndex,omitempty"`
}

// Where returns the namespace of the route's link.
func (r *Route) Where() Place { return r.In }

// IsShared reports whether attachments share the route.
func (r *Route) IsShared() bool { return r.Shared }

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
	if s.isNew(r.In, r.Link) {
		return []Change{{Do: Step{VerbAdd, r}}}, nil
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
	return []Change{addition(r)}, nil
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

// undo ignores a route that the kernel refuses because its gateway, its source address or
// the state of its link is gone.
func (r *Route) undo(ctx context.Context, s *session, v Verb) error {
	err := s.request(ctx, r, v)
	if v == VerbAdd && isRefusedRoute(err) {
		return nil
	}
	return err
}

func isRefusedRoute(err error) bool {
	return isInvalid(err) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETDOWN)
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
	return []nlconn.Message{r.message(index, v)}, nil
}

func (r *Route) message(index int, v Verb) nlconn.Message {
	key := rtnl.Route{
		Link: index, Dst: r.Dst, Via: r.Via, Priority: r.Priority, Table: r.table(), Protocol: uint8(r.Protocol), Scope: unix.RT_SCOPE_NOWHERE,
	}
	if v == VerbDel {
		return nlconn.Message{Kind: unix.RTM_DELROUTE, Body: key.Append(nil)}
	}
	all := key
	all.Kind, all.Scope, all.Src, all.MTU, all.AdvMSS, all.OnLink = r.kind(), r.scope(), r.Src, r.MTU, r.AdvMSS, r.OnLink
	if r.Protocol == 0 {
		all.Protocol = unix.RTPROT_BOOT
	}
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_APPEND)
	if r.Shared {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	return nlconn.Message{Kind: unix.RTM_NEWROUTE, Flags: flags, Body: all.Append(nil)}
}

// kind returns the type of the route, RTN_*.
func (r *Route) kind() uint8 {
	if r.Local {
		return unix.RTN_LOCAL
	}
	return unix.RTN_UNICAST
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

// routesLike reads the routes over r's link that have r's type, in one table, or
// in all tables for 0.
func (s *session) routesLike(ctx context.Context, r *Route, table int) ([]rtnl.Route, error) {
	if !r.Local {
		return s.routes(ctx, r.In, r.Link, table)
	}
	index, c, err := s.linkConn(ctx, r.In, r.Link)
	if err != nil {
		return nil, err
	}
	return c.RoutesOf(ctx, rtnl.Family(r.Dst.Addr()), rtnl.RoutesRequest{Link: index, Kind: unix.RTN_LOCAL})
}

// routes reads the routes over a link in one table, or in all tables for 0.
func (s *session) routes(ctx context.Context, p Place, link string, table int) ([]rtnl.Route, error) {
	index, c, err := s.linkConn(ctx, p, link)
	if err != nil {
		return nil, err
	}
	return c.Routes(ctx, index, table)
}

// routeOf returns the Route that restores have over a link of that name.
func routeOf(have *rtnl.Route, in Place, link string) *Route {
	scope := int(have.Scope)
	return &Route{
		In: in, Link: link, Dst: have.Dst, Via: have.Via, Src: have.Src, MTU: have.MTU, AdvMSS: have.AdvMSS,
		Priority: have.Priority, Table: have.Table, Protocol: int(have.Protocol), Scope: &scope, OnLink: have.OnLink,
	}
}

// leaving is a route over a link that the plan deletes.
type leaving struct {
	link linkRef
	rtnl.Route
}

// planAbsent deletes the present routes and records them for the inverse.
func (r *Route) planAbsent(ctx context.Context, s *session) ([]Change, error) {
	if s.isNew(r.In, r.Link) {
		return nil, nil
	}
	have, err := s.routes(ctx, r.In, r.Link, r.table())
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, h := range have {
		key := leaving{linkRef{r.In, r.Link}, h}
		if !r.matches(h) || s.leaving[key] {
			continue
		}
		if s.leaving == nil {
			s.leaving = map[leaving]bool{}
		}
		s.leaving[key] = true
		was := routeOf(&h, r.In, r.Link)
		back := *was
		back.LinkIndex = h.Link
		changes = append(changes, Change{Do: Step{VerbDel, was}, Undo: &Step{VerbAdd, &back}})
	}
	return changes, nil
}

// verifyAbsent reports the routes that still exist.
func (r *Route) verifyAbsent(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.routes(ctx, r.In, r.Link, r.table())
	if err != nil && !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	for _, h := range have {
		if r.matches(h) {
			return []Difference{{Object: r, Want: "absent", Have: "present"}}, nil
		}
	}
	return nil, nil
}

// removal returns nil for a route that must be absent.
func (r *Route) removal() *Step {
	if r.Absent {
		return nil
	}
	return &Step{VerbDel, r}
}

// validateAbsent rejects a shared Route that must be absent.
func (r *Route) validateAbsent() error {
	if r.Absent && r.Shared {
		return fmt.Errorf("a shared route that is absent: %w", ErrInvalid)
	}
	return nil
}
