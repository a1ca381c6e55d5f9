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
		if u.isAbsentPlace(st.Object.Where()) {
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

// probed runs f for one step and calls the probe before and after it.
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

// elements deletes elements in one transaction. With a probe each element has
// its own.
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

// isOwn reports whether the element with e's key is absent or has e's label.
// Another owner can use the key now.
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

// flows deletes the tracked connections of one namespace in one pass. With a
// probe each of flows has its own pass.
func (u *undoer) flows(ctx context.Context, p Place, flows []*Flows) error {
	if u.isAbsentPlace(p) {
		return nil
	}
	if u.net.probe == nil {
		return u.deleteFlows(ctx, flows)
	}
	var errs []error
	for _, f := range flows {
		errs = append(errs, u.probed(Step{VerbDel, f}, func() error { return u.deleteFlows(ctx, []*Flows{f}) }))
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

// isOutdated reports whether the kernel refused an inverse because the old state
// is no longer possible. That is not an error, because the link will be deleted
// soon. Such inverses are:
//
//   - a route whose gateway, source address or link state is gone;
//   - a link attribute that the kernel no longer accepts: an MTU above the
//     parent's, a MAC that another link has;
//   - a setting whose limit changed: an interface's net/ipv6/…/mtu above its MTU;
//   - the deletion of a forwarding entry of a link that is not a port any more.
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
