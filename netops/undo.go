package netops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// undoPatience bounds an Undo, which does not end with its caller's context.
const undoPatience = 30 * time.Second

// Undo runs the inverses of changes, in reverse. What is absent is success. A
// link is deleted only if its alias still has the label that the change
// recorded; a stranger's link of that name stays. It goes on after errors and
// joins them, and after ctx is cancelled. With a nil container the steps in it
// are skipped: they went with it.
//
// Elements go first: the socket that deleted them is the slow one to close.
// Flows go last.
func (n *Net) Undo(ctx context.Context, changes []Change, container *Namespace) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	u := &undoer{applier{session: n.session(container)}}
	var rest, elements []Step
	flows := map[Place][]*Flows{}
	var sources []*ZoneSource
	var errs []error
	for _, c := range slices.Backward(changes) {
		if c.Undo == nil {
			continue
		}
		st := *c.Undo
		if _, err := st.check(); err != nil {
			errs = append(errs, err)
			continue
		}
		switch o := st.Object.(type) {
		case *Element:
			elements = append(elements, st)
		case *Flows:
			flows[o.In] = append(flows[o.In], o)
		case *ZoneSource:
			sources = append(sources, o)
		default:
			rest = append(rest, st)
		}
	}
	errs = append(errs, u.elements(ctx, elements))
	for _, st := range rest {
		if u.unknown(st.Object.Where()) {
			continue
		}
		errs = append(errs, u.probed(st, func() error { return u.step(ctx, st) }))
	}
	if len(sources) > 0 {
		errs = append(errs, u.zoneSources(ctx, sources))
	}
	for _, p := range []Place{Host, Container} {
		errs = append(errs, u.flows(ctx, p, flows[p]))
	}
	return errors.Join(errs...)
}

// undoer is one call of Undo.
type undoer struct{ applier }

// probed makes one step between the probe's two calls.
func (u *undoer) probed(st Step, f func() error) error {
	p := u.net.probe
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

// elements deletes elements, all in one transaction unless a probe looks on.
func (u *undoer) elements(ctx context.Context, steps []Step) error {
	var errs []error
	var all []*nft.Element
	for _, st := range steps {
		e := st.Object.(*Element)
		mine, err := u.isOwn(ctx, e)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !mine:
		case u.net.probe == nil && st.Verb == VerbDel:
			all = append(all, (*nft.Element)(e))
		default:
			errs = append(errs, u.probed(st, func() error { return u.element(ctx, st, e) }))
		}
	}
	if len(all) > 0 {
		errs = append(errs, u.net.nft.Del(ctx, all))
	}
	return errors.Join(errs...)
}

func (u *undoer) element(ctx context.Context, st Step, e *Element) error {
	if st.Verb == VerbDel {
		return u.net.nft.Del(ctx, []*nft.Element{(*nft.Element)(e)})
	}
	return u.net.nft.Add(ctx, []*nft.Element{(*nft.Element)(e)})
}

// isOwn tells whether the element that is there, if any, is the one recorded:
// another owner may have its key now.
func (u *undoer) isOwn(ctx context.Context, e *Element) (bool, error) {
	if e.Label == "" || e.Shared {
		return true, nil
	}
	have, found, err := u.net.nft.Get(ctx, (*nft.Element)(e))
	if err != nil {
		return false, err
	}
	return !found || have.Label == e.Label, nil
}

// flows deletes the tracked connections of one namespace, in one pass unless a
// probe looks on.
func (u *undoer) flows(ctx context.Context, p Place, flows []*Flows) error {
	if u.unknown(p) {
		return nil
	}
	if u.net.probe == nil {
		return u.flush(ctx, flows)
	}
	var errs []error
	for _, f := range flows {
		errs = append(errs, u.probed(Step{VerbDel, f}, func() error { return u.flush(ctx, []*Flows{f}) }))
	}
	return errors.Join(errs...)
}

// step runs one inverse.
func (u *undoer) step(ctx context.Context, st Step) error {
	err := u.try(ctx, st)
	switch {
	case err == nil, nlconn.IsAbsent(err):
		return nil
	case st.Verb == VerbAdd && errors.Is(err, unix.EEXIST):
		return nil
	case isOutdated(st, err):
		return nil
	}
	return describeStep(st, err)
}

// isOutdated tells whether the kernel refused to put back what can no longer
// be: a route whose gateway, source address or state of the link went, an
// attribute that a link may not have any more (the MTU when the parent's has
// become less, the MAC when another has it), a setting that others bound (an
// interface's net/ipv6/…/mtu while its MTU is less). The link is on its way out. Of a
// link that is no port any more the kernel does not look for a forwarding entry.
func isOutdated(st Step, err error) bool {
	invalid := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE)
	switch o := st.Object.(type) {
	case *Route:
		return st.Verb == VerbAdd && (invalid || errors.Is(err, unix.ENETUNREACH) ||
			errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETDOWN))
	case *Link:
		return st.Verb == VerbSet && o.Index != 0 && (invalid || errors.Is(err, unix.EADDRINUSE))
	case *Sysctl:
		return invalid
	case *Neigh:
		return st.Verb == VerbDel && o.FDB && errors.Is(err, unix.EOPNOTSUPP)
	}
	return false
}

func (u *undoer) try(ctx context.Context, st Step) error {
	switch o := st.Object.(type) {
	case *Sysctl:
		ns, err := u.namespace(o.In)
		if err != nil {
			return err
		}
		return ns.visit(o.write)
	case *Move:
		return u.moveBack(ctx, o)
	case *VRF:
		if st.Verb != VerbDel {
			return fmt.Errorf("an inverse that makes a member: %w", ErrInvalid)
		}
		return o.leave(ctx, u.session)
	case *Forward:
		return o.run(ctx, u.net, st.Verb)
	case *Takeover:
		return u.net.RestoreUplink(ctx, *o, false)
	case *LinkDNS:
		return u.net.revertDNS(ctx, o)
	case *Netns:
		return u.endNetns(ctx, o)
	case *Link:
		switch st.Verb {
		case VerbDel:
			return u.deleteLink(ctx, o)
		case VerbAdd:
			return fmt.Errorf("an inverse that makes a link: %w", ErrInvalid)
		}
	}
	o := st.Object.(rtObject)
	msgs, err := o.messages(ctx, u.session, st.Verb)
	if err != nil {
		return err
	}
	c, err := u.conn(o.Where())
	if err != nil {
		return err
	}
	results, broken := c.Exchange(ctx, msgs)
	return errors.Join(append(results, broken)...)
}
