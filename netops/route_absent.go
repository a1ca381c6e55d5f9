package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

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
