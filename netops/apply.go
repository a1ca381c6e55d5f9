package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// check validates a step. A step that was read from a file can be damaged.
func (st Step) check() (kernelObject, error) {
	o, ok := st.Object.(kernelObject)
	if !ok {
		return nil, fmt.Errorf("step without an object: %w", ErrInvalid)
	}
	if st.Verb != VerbAdd && st.Verb != VerbSet && st.Verb != VerbDel {
		return nil, fmt.Errorf("step %q: %w", st.Verb, ErrInvalid)
	}
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	return o, nil
}

// Apply makes planned changes, in order. After the first failure it runs the inverses of
// the changes that this call made, in reverse order. The error wraps ErrExists,
// ErrConflict, ErrNotSupported, ErrPermission, ErrInvalid or ErrBusy where one fits. It
// also contains the errors of the inverses.
//
// Apply uses the indexes of the host's links that Plan read. If another program deleted
// and recreated a bridge since, Apply fails; a new Plan finds the new bridge. A bridge
// that was only renamed since still gets the port.
func (n *Net) Apply(ctx context.Context, plan Plan, container *Namespace) error {
	for _, c := range plan.Changes {
		if _, err := c.Do.check(); err != nil {
			return err
		}
	}
	a := &applier{session: n.session(container)}
	maps.Copy(a.index, plan.index)
	err := a.run(ctx, plan.Changes)
	if err == nil || len(a.done) == 0 {
		return err
	}
	// a.done includes changes that may have failed. That is safe: an inverse accepts an
	// absent object.
	undo := func() error { return n.Undo(ctx, a.done, container) }
	if _, sources := AreRestored(a.done); sources {
		return errors.Join(err, n.alone(context.WithoutCancel(ctx), undo))
	}
	return errors.Join(err, undo())
}

// applier is the state of one call of Apply.
type applier struct {
	*session
	// done are the changes made, in order.
	done []Change
}

// run makes the changes, batch by batch.
func (a *applier) run(ctx context.Context, changes []Change) error {
	for len(changes) > 0 {
		n := a.batch(changes)
		if err := ctx.Err(); err != nil {
			return err
		}
		first := changes[0].Do
		err := a.probed(first, func() error { return first.Object.(kernelObject).apply(ctx, a, changes[:n]) })
		if err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// batch returns how many of the first changes can be made together. They use the same
// kernel interface, in the same namespace. With a probe it returns 1.
func (a *applier) batch(changes []Change) int {
	if a.net.probe != nil {
		return 1
	}
	place, key := changes[0].Do.Object.Where(), batchKey(changes[0].Do)
	for i, c := range changes {
		if i == nlconn.MaxWrite || i > 0 && (key == "" || c.Do.Object.Where() != place || batchKey(c.Do) != key) {
			return i
		}
	}
	return len(changes)
}

// probed runs f for one step and calls the probe before and after it.
func (s *session) probed(st Step, f func() error) error {
	p := s.net.probe
	if p != nil {
		if err := p.Before(st); err != nil {
			return describeStep(st, err)
		}
	}
	err := f()
	if p != nil && err == nil {
		p.After(st)
	}
	return err
}

// describeStep adds the step and the meaning of the errno to an error.
func describeStep(st Step, err error) error {
	return nlconn.Explain(err, fmt.Sprintf("%s %s", st.Verb, st.Object))
}
