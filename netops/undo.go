package netops

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

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
// Options.Alone). Whoever undoes such changes excludes those processes until the record is deleted.
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
	err := st.Object.(kernelObject).undo(ctx, s, st.Verb)
	if err == nil || nlconn.IsAbsent(err) || st.Verb == VerbAdd && errors.Is(err, unix.EEXIST) {
		return nil
	}
	return describeStep(st, err)
}

// isInvalid reports whether the kernel refused a value. For an inverse that is often not
// an error: the old state is no longer possible, and the link will be deleted soon.
func isInvalid(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) }
