package netops

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// requests makes the rtnetlink steps of one namespace. One write contains all
// requests whose link indexes are known.
func (a *applier) requests(ctx context.Context, batch []Change) error {
	w := requestWriter{applier: a}
	for _, c := range batch {
		if w.needsFlush(c.Do) {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
		if err := w.add(ctx, c); err != nil {
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

// needsFlush reports whether the collected requests must be sent before the
// step's requests can be built.
func (w *requestWriter) needsFlush(st Step) bool {
	if len(w.msgs) == 0 {
		return false
	}
	switch o := st.Object.(type) {
	case *Link:
		// A link that another program created meanwhile must not be
		// relabelled.
		return st.Verb == VerbAdd || w.fresh[o.Name] || w.fresh[o.Master] || len(w.fresh) > 0 && o.Shared
	case *Sysctl:
		link, _, _ := o.byRequest()
		return w.fresh[link]
	case *Addr:
		return w.fresh[o.Link]
	case *Route:
		return w.fresh[o.Link]
	case *Neigh:
		return w.fresh[o.Link]
	case *Qdisc:
		return w.fresh[o.Link]
	case *Redirect:
		return w.fresh[o.Link] || w.fresh[o.To]
	case *PortVLANs:
		return true // the step reads the port first
	}
	return false
}

// add builds a change's requests.
func (w *requestWriter) add(ctx context.Context, c Change) error {
	o := c.Do.Object.(rtObject)
	l, isLink := o.(*Link)
	if isLink && c.Do.Verb == VerbDel {
		if err := w.flush(ctx); err != nil {
			return err
		}
		if err := w.deleteLink(ctx, l); err != nil {
			return describeStep(c.Do, err)
		}
		w.done = append(w.done, c)
		return nil
	}
	if isLink && c.Do.Verb == VerbAdd {
		if err := w.checkNameFree(ctx, l); err != nil {
			return err
		}
		if l.Kind == rtnl.KindTap {
			return w.addTap(ctx, c, l)
		}
	}
	msgs, err := o.messages(ctx, w.session, c.Do.Verb)
	if err != nil {
		return describeStep(c.Do, err)
	}
	switch {
	case isLink && c.Do.Verb == VerbAdd && l.crossesNamespaces():
		return w.addAcross(ctx, c, l, msgs)
	case isLink && c.Do.Verb == VerbAdd && l.Shared && len(msgs) > 1 && !l.choosesIndex():
		return w.addShared(ctx, c, msgs)
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
	if l, ok := c.Do.Object.(*Link); ok && c.Do.Verb == VerbAdd {
		w.fresh = map[string]bool{l.Name: true}
		if l.Peer != nil && l.Peer.In == l.In {
			w.fresh[l.Peer.Name] = true
		}
	}
}

// checkNameFree checks that an exclusive link's name is free. The label request after the
// create request can find the link by name, and would then relabel another
// program's link.
func (w *requestWriter) checkNameFree(ctx context.Context, l *Link) error {
	if l.Shared || l.choosesIndex() {
		return nil
	}
	have, err := w.findLink(ctx, l.In, l.Name)
	if err != nil {
		return err
	}
	if have != nil {
		return fmt.Errorf("%s %w%s", l.title(), ErrExists, labelled(have.Alias))
	}
	return nil
}

// addShared creates a shared link with two ends. It labels the link only if this
// call created it, because another process can have created it first.
func (w *requestWriter) addShared(ctx context.Context, c Change, msgs []nlconn.Message) error {
	c.Undo = nil
	w.queue(c, msgs[:1])
	made, err := w.flushMade(ctx)
	if err != nil || !made {
		return err
	}
	w.queue(Change{Do: Step{VerbSet, c.Do.Object}}, msgs[1:])
	return w.flush(ctx)
}

// addAcross creates a link with a request in its parent's namespace, and then
// labels it in the link's own namespace.
func (w *requestWriter) addAcross(ctx context.Context, c Change, l *Link, msgs []nlconn.Message) error {
	parent, err := w.conn(l.parentIn())
	if err != nil {
		return describeStep(c.Do, err)
	}
	results, broken := parent.Exchange(ctx, msgs[:1])
	if results[0] == nil || errors.Is(results[0], nlconn.ErrUnknown) {
		w.done = append(w.done, c)
	}
	if broken != nil {
		return describeStep(c.Do, broken)
	}
	if results[0] != nil {
		return w.handleReply(ctx, c.Do, results[0])
	}
	w.index[l.ref()] = l.chosenIndex()
	own, err := w.conn(l.In)
	for _, m := range msgs[1:] {
		if err == nil {
			err = own.One(ctx, m)
		}
	}
	return describeStep(c.Do, err)
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

// add records the answer to the step's next request. For a new link only the
// first request counts, because later ones can have changed another program's
// link.
func (a *answer) add(st Step, err error) {
	_, isLink := st.Object.(*Link)
	if a.n == 0 || !isLink || st.Verb != VerbAdd {
		a.happened = a.happened || err == nil || errors.Is(err, nlconn.ErrUnknown)
	}
	if a.refused == nil {
		a.refused = err
	}
	a.n++
}

// handleReply interprets the kernel's answer to a step. It accepts two errors:
// deleting an absent object, and adding a shared object that another process
// added meanwhile as desired.
func (w *requestWriter) handleReply(ctx context.Context, st Step, err error) error {
	if err == nil {
		return nil
	}
	o := st.Object.(rtObject)
	if st.Verb == VerbDel && nlconn.IsAbsent(err) {
		return nil
	}
	if st.Verb == VerbAdd && o.IsShared() && errors.Is(err, unix.EEXIST) {
		fresh := w.net.session(w.container)
		changes, planErr := o.plan(ctx, fresh)
		if planErr != nil {
			return planErr
		}
		if len(changes) == 0 {
			return nil
		}
		if l, ok := changes[0].Do.Object.(*Link); ok && changes[0].Do.Verb == VerbSet {
			return (&applier{session: fresh}).requests(ctx, []Change{{Do: Step{VerbSet, l}}})
		}
	}
	if l, ok := o.(*Link); ok && st.Verb == VerbAdd && errors.Is(err, unix.EEXIST) {
		return l.takenError(ctx, w.session)
	}
	if l, ok := o.(*Link); ok && st.Verb == VerbAdd && l.hasParent() && errors.Is(err, unix.EBUSY) {
		return l.parentBusyError()
	}
	if l, ok := o.(*Link); ok && l.Master != "" && errors.Is(err, unix.EINVAL) {
		return cmp.Or(w.masterChanged(ctx, l), describeStep(st, err))
	}
	return describeStep(st, err)
}

// masterChanged returns the error for a link whose master was replaced or
// deleted since the plan. The kernel only reports an invalid index.
func (w *requestWriter) masterChanged(ctx context.Context, l *Link) error {
	ref := linkRef{l.In, l.Master}
	index := w.index[ref]
	have, err := w.link(ctx, l.In, l.Master)
	switch {
	case err != nil:
		return fmt.Errorf("master of %s: %w", l.title(), err)
	case have.Index != index:
		return fmt.Errorf("master of %s: link %q was deleted and recreated meanwhile: %w", l.title(), l.Master, ErrBusy)
	}
	return nil
}
