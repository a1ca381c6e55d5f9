package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

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
		err := a.probed(first, func() error { return a.apply(ctx, changes[:n]) })
		if err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// apply makes one batch.
func (a *applier) apply(ctx context.Context, batch []Change) error {
	if o, ok := batch[0].Do.Object.(maker); ok {
		return o.apply(ctx, a, batch)
	}
	return a.requests(ctx, batch)
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

// undoPatience limits the duration of Undo, which ignores cancellation by the
// caller.
const undoPatience = 30 * time.Second

// Undo runs the inverses of changes in reverse order. An absent object is not an
// error. A link is deleted only if its alias still has the recorded label, so
// another program's link of that name stays. Undo continues after errors and
// joins them. It continues after ctx is cancelled. With a nil container the
// steps in the container are skipped, because their objects were deleted with
// it.
//
// Elements are deleted first, because closing the socket that deletes them takes
// long. Flows are deleted last.
func (n *Net) Undo(ctx context.Context, changes []Change, container *Namespace) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	s := n.session(container)
	var phases [undoPhases][]Step
	var errs []error
	for _, c := range slices.Backward(changes) {
		if c.Undo == nil {
			continue
		}
		o, err := c.Undo.check()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		phases[phaseOf(o)] = append(phases[phaseOf(o)], *c.Undo)
	}
	for phase, steps := range phases {
		if undoPhase(phase) != undoOthers && len(steps) > 0 {
			errs = append(errs, steps[0].Object.(groupUndoer).undoGroup(ctx, s, steps))
			continue
		}
		for _, st := range steps {
			if !s.isAbsentPlace(st.Object.Where()) {
				errs = append(errs, s.probed(st, func() error { return s.undo(ctx, st) }))
			}
		}
	}
	return errors.Join(errs...)
}

// AreRestored reports whether other processes restore some of the objects from records (see
// Options.Alone). The caller that undoes such changes excludes those processes until the record is deleted.
// With sources Undo restores the sources of other records itself, so its caller must be alone.
func AreRestored(changes []Change) (some, sources bool) {
	for _, c := range changes {
		switch c.Do.Object.(type) {
		case *Element, *Forward:
			some = true
		case *ZoneSource:
			some, sources = true, true
		}
	}
	return some, sources
}

// undo runs one inverse.
func (s *session) undo(ctx context.Context, st Step) error {
	var err error
	if o, ok := st.Object.(undoer); ok {
		err = o.undo(ctx, s, st.Verb)
	} else {
		err = s.request(ctx, st.Object.(requester), st.Verb)
	}
	if err == nil || nlconn.IsAbsent(err) || st.Verb == VerbAdd && errors.Is(err, unix.EEXIST) {
		return nil
	}
	return describeStep(st, err)
}

// isInvalid reports whether the kernel refused a value. For an inverse that is often not
// an error: the old state is no longer possible, and the link will be deleted soon.
func isInvalid(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) }

// request makes one step of an object at once.
func (s *session) request(ctx context.Context, o requester, v Verb) error {
	msgs, err := o.messages(ctx, s, v)
	if err != nil {
		return err
	}
	c, err := s.conn(o.Where())
	if err != nil {
		return err
	}
	results, broken := c.Exchange(ctx, msgs)
	return errors.Join(append(results, broken)...)
}

// requests makes the rtnetlink steps of one namespace. One write contains all
// requests whose link indexes are known.
func (a *applier) requests(ctx context.Context, batch []Change) error {
	w := &requestWriter{applier: a}
	for _, c := range batch {
		var err error
		if o, ok := c.Do.Object.(enqueuer); ok {
			err = o.enqueue(ctx, w, c)
		} else {
			err = w.enqueue(ctx, c)
		}
		if err != nil {
			return errors.Join(w.flush(ctx), err)
		}
	}
	return w.flush(ctx)
}

// requestWriter collects requests of one namespace that are sent together.
type requestWriter struct {
	*applier
	msgs []nlconn.Message
	// of[i] is the index in changes of the change that msgs[i] belongs to.
	of      []int
	changes []Change
	// fresh holds the links that the requests create. Their indexes are
	// unknown before the write, so the write cannot contain requests that
	// need these indexes.
	fresh map[string]bool
}

// enqueue adds a change's requests. It first sends the collected ones if they
// create a link whose index the change needs, or if one write cannot contain all.
func (w *requestWriter) enqueue(ctx context.Context, c Change) error {
	o := c.Do.Object.(requester)
	if slices.ContainsFunc(o.links(), func(name string) bool { return w.fresh[name] }) {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	msgs, err := o.messages(ctx, w.session, c.Do.Verb)
	if err != nil {
		return describeStep(c.Do, err)
	}
	if len(w.msgs)+len(msgs) > nlconn.MaxWrite {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	w.queue(c, msgs)
	return nil
}

func (w *requestWriter) queue(c Change, msgs []nlconn.Message) {
	for range msgs {
		w.of = append(w.of, len(w.changes))
	}
	w.changes, w.msgs = append(w.changes, c), append(w.msgs, msgs...)
}

func (w *requestWriter) flush(ctx context.Context) error {
	_, err := w.flushMade(ctx)
	return err
}

// flushMade sends the requests. made is false if a shared object already existed
// as desired.
func (w *requestWriter) flushMade(ctx context.Context) (made bool, err error) {
	msgs, of, changes := w.msgs, w.of, w.changes
	w.msgs, w.of, w.changes, w.fresh = nil, nil, nil, nil
	if len(changes) == 0 {
		return true, nil
	}
	c, err := w.conn(changes[0].Do.Object.Where())
	if err != nil {
		return false, err
	}
	results, broken := c.Exchange(ctx, msgs)
	answers := make([]answer, len(changes))
	for i, err := range results {
		answers[of[i]].add(changes[of[i]].Do, err)
	}
	made = true
	var first error
	for i, c := range changes {
		err := w.handleReply(ctx, c.Do, answers[i].refused)
		if err == nil && answers[i].refused != nil {
			made = false
		}
		if answers[i].refused == nil || answers[i].happened {
			w.done = append(w.done, c)
		}
		if first == nil {
			first = err
		}
	}
	if broken != nil {
		first = describeStep(changes[0].Do, broken)
	}
	return made, first
}

// answer is the kernel's answer to a step's requests.
type answer struct {
	n int
	// refused is the first error.
	refused error
	// happened reports whether there can be a change to revert despite the
	// error.
	happened bool
}

// add records the answer to the step's next request. For a new object only the
// first request counts, because later ones can have changed another program's
// link.
func (a *answer) add(st Step, err error) {
	if a.n == 0 || st.Verb != VerbAdd {
		a.happened = a.happened || err == nil || errors.Is(err, nlconn.ErrUnknown)
	}
	if a.refused == nil {
		a.refused = err
	}
	a.n++
}

// handleReply interprets the kernel's answer to a step. It accepts three errors:
// deleting an absent object, an optional setting that the link does not have, and
// adding a shared object that another process added meanwhile as desired.
func (w *requestWriter) handleReply(ctx context.Context, st Step, err error) error {
	if err == nil || st.Verb == VerbDel && nlconn.IsAbsent(err) {
		return nil
	}
	if c, ok := st.Object.(*Sysctl); ok && c.mayFail(err) {
		return nil
	}
	if st.Verb == VerbAdd && st.Object.IsShared() && errors.Is(err, unix.EEXIST) {
		fresh := w.net.session(w.container)
		changes, planErr := st.Object.(kernelObject).plan(ctx, fresh)
		if planErr != nil || len(changes) == 0 {
			return planErr
		}
		if changes[0].Do.Verb == VerbSet {
			return (&applier{session: fresh}).requests(ctx, changes[:1])
		}
	}
	if o, ok := st.Object.(refuser); ok {
		if refusal := o.refusal(ctx, w.session, st.Verb, err); refusal != nil {
			return refusal
		}
	}
	return describeStep(st, err)
}
