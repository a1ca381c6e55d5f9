package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Plan reads the kernel and lists the changes that lead to the Spec, each with
// its inverse. It writes nothing. A nil container is planned as an empty
// namespace. If an exclusive object exists, the error wraps ErrExists. A shared
// object that exists as desired needs no change. If it differs, the error wraps
// ErrConflict.
func (n *Net) Plan(ctx context.Context, spec Spec, container *Namespace) (Plan, error) {
	objects, err := spec.check()
	if err != nil {
		return Plan{}, err
	}
	s := n.session(container)
	var all, last []Change
	planned := map[string]bool{}
	for _, o := range objects {
		changes, err := o.plan(ctx, s)
		if err != nil {
			return Plan{}, err
		}
		for _, c := range changes {
			line := string(c.Do.Verb) + " " + c.Do.Object.String()
			if c.Do.Object.IsShared() && planned[line] {
				continue // two addresses can have the same gateway
			}
			planned[line] = true
			if phaseOf(c.Do.Object) == undoFlows {
				last = append(last, c)
			} else {
				all = append(all, c)
			}
		}
	}
	maps.DeleteFunc(s.index, func(ref linkRef, _ int) bool { return ref.in != Host })
	return Plan{append(all, last...), s.index}, nil
}

// Without returns the objects of spec that an earlier, applied Spec lacks. Equal
// objects are omitted. A link that the earlier Spec created or moved is only
// configured.
func (spec Spec) Without(earlier Spec) Spec {
	made := map[linkRef]bool{}
	for _, o := range earlier.Objects {
		if refs := linksMade(o); len(refs) > 0 && !o.IsShared() {
			made[refs[0]] = true
		}
	}
	var out Spec
	for _, o := range spec.Objects {
		if slices.ContainsFunc(earlier.Objects, func(e Object) bool { return reflect.DeepEqual(e, o) }) {
			continue
		}
		if refs := linksMade(o); len(refs) > 0 && made[refs[0]] {
			o = o.(linkMaker).configuration()
		}
		out.Add(o)
	}
	return out
}

// Since lists the changes that lead from an earlier Spec to spec: what it has and the earlier one
// lacks, then what the earlier one has, the last object first. A link of the same name and a sysctl
// of the same key are the same object. Other settings are not changed back.
func (spec Spec) Since(earlier Spec) []Change {
	before, now := earlier.byName(), spec.byName()
	var changes []Change
	for _, o := range spec.Objects {
		old, known := before[nameOf(o)]
		switch del := deletion(o); {
		case known && old.String() != o.String():
			changes = append(changes, Change{Do: Step{VerbSet, o}, Undo: &Step{VerbSet, old}})
		case !known && del == nil:
			changes = append(changes, Change{Do: Step{VerbSet, o}})
		case !known && o.IsShared():
			changes = append(changes, Change{Do: Step{VerbAdd, o}})
		case !known:
			changes = append(changes, Change{Do: Step{VerbAdd, o}, Undo: del})
		}
	}
	for _, o := range slices.Backward(earlier.Objects) {
		if del := deletion(o); del != nil && now[nameOf(o)] == nil {
			changes = append(changes, Change{Do: *del, Undo: &Step{VerbAdd, o}})
		}
	}
	return changes
}

// byName returns the objects by their names.
func (spec Spec) byName() map[string]Object {
	all := map[string]Object{}
	for _, o := range spec.Objects {
		all[nameOf(o)] = o
	}
	return all
}

// nameOf returns a text that is equal for the same object with other attributes.
func nameOf(o Object) string {
	if s, ok := o.(*Sysctl); ok {
		return fmt.Sprintf("sysctl %s %s", s.In, s.Key)
	}
	if refs := linksMade(o); len(refs) > 0 {
		return fmt.Sprint(refs[0])
	}
	return o.String()
}

func linksMade(o Object) []linkRef {
	if m, ok := o.(linkMaker); ok {
		return m.made()
	}
	return nil
}

// check validates all objects and returns all errors.
func (spec Spec) check() ([]kernelObject, error) {
	objects := make([]kernelObject, len(spec.Objects))
	errs := make([]error, len(spec.Objects))
	for i, o := range spec.Objects {
		objects[i], errs[i] = Step{VerbAdd, o}.check()
	}
	return objects, errors.Join(errs...)
}

// Ensure runs Plan and then Apply.
func (n *Net) Ensure(ctx context.Context, spec Spec, container *Namespace) error {
	plan, err := n.Plan(ctx, spec, container)
	if err != nil {
		return err
	}
	return n.Apply(ctx, plan, container)
}

// Verify lists every difference between the Spec and the kernel. It compares
// only what the Spec sets. The error is a failure to read.
func (n *Net) Verify(ctx context.Context, spec Spec, container *Namespace) ([]Difference, error) {
	objects, err := spec.check()
	if err != nil {
		return nil, err
	}
	s := n.session(container)
	var all []Difference
	for _, o := range objects {
		if _, named := o.Where().name(); named && s.isAbsentPlace(o.Where()) {
			all = append(all, absence(o))
			continue
		}
		some, err := o.verify(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w", o, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// Remove deletes the Spec's exclusive objects when there is no record of
// changes. An absent object is not an error. A link whose alias has another
// label is not deleted.
func (n *Net) Remove(ctx context.Context, spec Spec, container *Namespace) error {
	made := map[linkRef]bool{}
	var changes []Change
	for _, o := range spec.Objects {
		if o == nil || o.IsShared() {
			continue
		}
		inverse := deletion(o)
		if inverse == nil || made[linkOf(o)] {
			continue // nothing to delete, or deleted with its link
		}
		for _, ref := range linksMade(o) {
			made[ref] = true
		}
		changes = append(changes, Change{Do: Step{VerbAdd, o}, Undo: inverse})
	}
	return n.Undo(ctx, changes, container)
}

// SharedInverses returns changes whose inverses delete the shared objects of a
// Spec. The caller uses it when no attachment needs them any more. Settings are
// not changed. Objects in a named namespace are deleted with the namespace.
func SharedInverses(spec Spec) []Change {
	var changes []Change
	for _, o := range spec.Objects {
		if o == nil || !o.IsShared() {
			continue
		}
		if _, named := o.Where().name(); named {
			continue
		}
		if inverse := deletion(o); inverse != nil {
			changes = append(changes, Change{Do: Step{VerbAdd, o}, Undo: inverse})
		}
	}
	return changes
}

// deletion returns the step that deletes an object, or nil if there is nothing to delete.
func deletion(o Object) *Step {
	if r, ok := o.(remover); ok {
		return r.removal()
	}
	return &Step{VerbDel, o}
}

// linkOf returns the link that an object is deleted with, or the zero value.
func linkOf(o Object) linkRef {
	if r, ok := o.(requester); ok {
		for _, name := range r.links() {
			return linkRef{o.Where(), name}
		}
	}
	return linkRef{}
}

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
	own.Shared, own.Alias, own.Port = l.Shared, "", nil // the text after the label is for people
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
			parts = append(parts, p.link())
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
