package netops

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Plan reads the kernel and lists the changes that lead to the Spec, each with
// its inverse. It writes nothing. A nil container is planned as an empty
// namespace. An exclusive object that exists is an error wrapping ErrExists; a
// shared one that exists as wanted is no change, and one that is something
// else an error wrapping ErrConflict.
func (n *Net) Plan(ctx context.Context, spec Spec, container *Namespace) ([]Change, error) {
	objects, err := spec.check()
	if err != nil {
		return nil, err
	}
	s := n.session(container)
	var all []Change
	planned := map[string]bool{}
	for _, o := range objects {
		changes, err := o.plan(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			line := string(c.Do.Verb) + " " + c.Do.Object.String()
			if c.Do.Object.IsShared() && planned[line] {
				continue // two addresses may have one gateway
			}
			planned[line] = true
			all = append(all, c)
		}
	}
	n.planned = s.hostIndexes()
	return flowsLast(all), nil
}

// Beyond is what the Spec wants beyond an earlier one that was made: objects
// that are the same fall away, and links that were made or moved are only set up.
func (spec Spec) Beyond(earlier Spec) Spec {
	made := map[linkRef]bool{}
	for _, o := range earlier.Objects {
		switch o := o.(type) {
		case *Link:
			made[o.ref()] = made[o.ref()] || o.Kind != "" && !o.Shared
		case *Move:
			made[o.ref()] = true
		}
	}
	var out Spec
	for _, o := range spec.Objects {
		if slices.ContainsFunc(earlier.Objects, func(e Object) bool { return reflect.DeepEqual(e, o) }) {
			continue
		}
		switch l := o.(type) {
		case *Link:
			if l.Kind != "" && made[l.ref()] {
				o = &Link{In: l.In, Name: l.Name, MAC: l.MAC, MTU: l.MTU, Up: l.Up, Alias: l.Alias, Master: l.Master, Promisc: l.Promisc, AllMulti: l.AllMulti, TxQLen: l.TxQLen, Port: l.Port}
			}
		case *Move:
			if made[l.ref()] {
				o = &Link{In: l.To, Name: l.As, Alias: l.Alias}
			}
		}
		out.Add(o)
	}
	return out
}

// check validates all objects and tells every fault.
func (spec Spec) check() ([]object, error) {
	objects := make([]object, len(spec.Objects))
	errs := make([]error, len(spec.Objects))
	for i, o := range spec.Objects {
		objects[i], errs[i] = Step{VerbAdd, o}.check()
	}
	return objects, errors.Join(errs...)
}

// Ensure is Plan and Apply.
func (n *Net) Ensure(ctx context.Context, spec Spec, container *Namespace) error {
	changes, err := n.Plan(ctx, spec, container)
	if err != nil {
		return err
	}
	return n.Apply(ctx, changes, container)
}

// Verify lists every way in which the kernel is not as the Spec wants it. Only
// what the Spec sets is compared. The error is one of reading.
func (n *Net) Verify(ctx context.Context, spec Spec, container *Namespace) ([]Difference, error) {
	objects, err := spec.check()
	if err != nil {
		return nil, err
	}
	s := n.session(container)
	var all []Difference
	for _, o := range objects {
		if _, named := o.Where().name(); named && s.unknown(o.Where()) {
			all = append(all, Difference{Object: o, Want: "present", Have: "absent"})
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

// Remove deletes what the Spec's exclusive objects name, for want of a record.
// What is absent is success; so is a link whose alias has another label.
func (n *Net) Remove(ctx context.Context, spec Spec, container *Namespace) error {
	made := map[linkRef]bool{}
	var changes []Change
	for _, o := range spec.Objects {
		if o == nil || o.IsShared() {
			continue
		}
		inverse := deletion(o)
		if inverse == nil || made[linkOf(o)] {
			continue // nothing to delete, or gone with its link
		}
		switch o := o.(type) {
		case *Link:
			made[o.ref()] = true
			if o.Peer != nil {
				made[linkRef{o.Peer.In, o.Peer.Name}] = true
			}
		case *Move:
			made[o.ref()] = true
		}
		changes = append(changes, Change{Do: Step{VerbAdd, o}, Undo: inverse})
	}
	return n.Undo(ctx, changes, container)
}

// SharedInverses are changes whose inverses remove the shared objects of a
// Spec, for when nobody needs them any more. Settings are left as they are, and
// what is in a named namespace goes with that.
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

// deletion is the step that deletes an object; nil where there is nothing to
// delete: settings, and links that were only set up.
func deletion(o Object) *Step {
	switch o := o.(type) {
	case *Link:
		if o.Kind == "" {
			return nil
		}
		return &Step{VerbDel, o.inverse()}
	case *Sysctl, *PortVLANs:
		return nil
	case *Route:
		if o.Absent {
			return nil
		}
	}
	return &Step{VerbDel, o}
}

// linkOf is the link that an object is on; the zero value for none.
func linkOf(o Object) linkRef {
	switch o := o.(type) {
	case *Addr:
		return linkRef{o.In, o.Link}
	case *Route:
		return linkRef{o.In, o.Link}
	case *Neigh:
		return linkRef{o.In, o.Link}
	case *Qdisc:
		return linkRef{o.In, o.Link}
	case *Redirect:
		return linkRef{o.In, o.Link}
	}
	return linkRef{}
}
