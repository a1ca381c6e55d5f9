package netops

import (
	"context"
	"errors"
	"fmt"
)

// Repair has the changes for one object, or the reason why it cannot be repaired.
type Repair struct {
	Changes []Change
	Err     error
}

// PlanRepair lists the changes that remove differences which Verify found, and the part for each
// object. An absent object is made, a link is configured, and another object is replaced. The
// changes have inverses only so that a failed Apply undoes itself: an attachment's record already
// has the inverses of its objects. After the changes Verify can find more, because settings of an
// absent link do not differ.
func (n *Net) PlanRepair(ctx context.Context, diffs []Difference, container *Namespace) (Plan, map[Object]Repair) {
	s := n.session(container)
	out := Plan{index: s.index}
	repairs := map[Object]Repair{}
	for _, d := range diffs {
		if _, planned := repairs[d.Object]; planned {
			continue
		}
		changes, err := s.planRepair(ctx, d)
		if err == nil && len(changes) == 0 {
			err = fmt.Errorf("%s: %w in place", d.Object, ErrNotSupported)
		}
		if err != nil {
			changes = nil
		}
		repairs[d.Object] = Repair{changes, err}
		out.Changes = append(out.Changes, changes...)
	}
	return out, repairs
}

// planRepair lists the changes for the object of one difference.
func (s *session) planRepair(ctx context.Context, d Difference) ([]Change, error) {
	o, err := Step{VerbAdd, d.Object}.check()
	if err != nil {
		return nil, err
	}
	absent := d == absence(d.Object)
	switch o := o.(type) {
	case *Link:
		if !absent && o.Kind != "" {
			return s.planConfigure(ctx, o)
		}
	case *Element:
		if own, err := o.isOwn(ctx, s); err != nil || !own {
			return nil, errors.Join(err, fmt.Errorf("%s: %w with another owner", o, ErrExists))
		}
		if !absent {
			return replacement(o), nil
		}
	case *Route:
		if !absent && !o.Absent {
			return replacement(o), nil
		}
	case *Neigh, *Qdisc:
		if !absent {
			return replacement(o), nil
		}
	}
	return o.plan(ctx, s)
}

// planConfigure sets the attributes of a link and of its peer that differ. The link must
// have its label, so that another program's link of that name is not changed.
func (s *session) planConfigure(ctx context.Context, l *Link) ([]Change, error) {
	have, err := s.link(ctx, l.In, l.Name)
	if err != nil {
		return nil, err
	}
	if have.Kind != l.Kind || !l.Shared && l.Alias != "" && !isLabelled(have.Alias, l.Alias) {
		return nil, fmt.Errorf("link %q %w%s", l.Name, ErrExists, labelled(have.Alias))
	}
	own := l.configuration()
	own.Shared, own.Alias, own.Port = l.Shared, "", nil // the text after the label may be of an older version
	parts := []*Link{own}
	if l.Port != nil { // a request of its own: the link must be a port first
		parts = append(parts, &Link{In: l.In, Shared: l.Shared, Name: l.Name, Port: l.Port})
	}
	if p := l.Peer; p != nil {
		end, err := s.findLink(ctx, p.In, p.Name)
		if err != nil {
			return nil, err
		}
		if end != nil && end.Index == have.Peer {
			parts = append(parts, &Link{In: p.In, Name: p.Name, MAC: p.MAC, MTU: p.MTU, Up: p.Up, Master: p.Master})
		}
	}
	var all []Change
	for _, part := range parts {
		changes, err := part.planSet(ctx, s)
		if err != nil {
			return nil, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// replacement deletes an object and makes it again.
func replacement(o Object) []Change {
	return []Change{{Do: Step{VerbDel, o}}, {Do: Step{VerbAdd, o}}}
}
