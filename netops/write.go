package netops

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

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
