package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// object is what every kind of Object does within this package.
type object interface {
	Object
	// validate judges the object alone; the error wraps ErrInvalid.
	validate() error
	// plan reads the kernel and lists the changes that lead to the object.
	plan(ctx context.Context, s *session) ([]Change, error)
	// verify lists how the kernel differs from the object.
	verify(ctx context.Context, s *session) ([]Difference, error)
}

// rtObject is an object that rtnetlink makes.
type rtObject interface {
	object
	// messages are the requests of a step.
	messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error)
}

var (
	_ rtObject = (*Link)(nil)
	_ rtObject = (*Addr)(nil)
	_ rtObject = (*Route)(nil)
	_ rtObject = (*Neigh)(nil)
	_ rtObject = (*Rule)(nil)
	_ rtObject = (*PortVLANs)(nil)
	_ rtObject = (*Sysctl)(nil)
	_ rtObject = (*Qdisc)(nil)
	_ rtObject = (*Redirect)(nil)
	_ object   = (*Move)(nil)
	_ object   = (*Element)(nil)
	_ object   = (*Forward)(nil)
	_ object   = (*ZoneSource)(nil)
	_ object   = (*VRF)(nil)
	_ object   = (*Flows)(nil)
	_ object   = (*Takeover)(nil)
	_ object   = (*LinkDNS)(nil)
	_ object   = (*Netns)(nil)
)

// check validates a step, which may come from a file.
func (st Step) check() (object, error) {
	o, ok := st.Object.(object)
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

// Apply makes planned changes, in order. The first failure undoes, in reverse,
// what this call did, as far as the changes have inverses; the error wraps
// ErrExists, ErrConflict, ErrNotSupported, ErrPermission, ErrInvalid or
// ErrBusy where one fits, and what went wrong while undoing. A bridge that others made
// anew since the Plan right before is an error too: another Plan finds it. One that was
// only renamed since gets the port.
func (n *Net) Apply(ctx context.Context, changes []Change, container *Namespace) error {
	for _, c := range changes {
		if _, err := c.Do.check(); err != nil {
			return err
		}
	}
	a := &applier{session: n.session(container)}
	if n.planned != nil {
		a.index, n.planned = n.planned, nil
	}
	err := a.run(ctx, changes)
	if err == nil || len(a.done) == 0 {
		return err
	}
	// In doubt a change was made: its inverse bears with what is absent.
	return errors.Join(err, n.Undo(ctx, a.done, container))
}

// applier is one call of Apply.
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
		if err := a.probed(ctx, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// probed makes one batch between the probe's two calls.
func (a *applier) probed(ctx context.Context, batch []Change) error {
	if p := a.net.probe; p != nil {
		if err := p.Before(batch[0].Do); err != nil {
			return describeStep(batch[0].Do, err)
		}
	}
	var err error
	switch o := batch[0].Do.Object.(type) {
	case *Sysctl:
		if _, _, ok := o.byRequest(); ok {
			err = a.requests(ctx, batch)
		} else {
			err = a.sysctls(batch)
		}
	case *Element:
		err = a.elements(ctx, batch)
	case *Move:
		err = a.move(ctx, batch[0])
	case *Forward:
		err = a.forward(ctx, batch[0])
	case *ZoneSource:
		err = a.zoneSource(ctx, batch[0])
	case *VRF:
		err = a.vrf(ctx, batch[0])
	case *Flows:
		err = a.flows(ctx, batch)
	case *Takeover:
		err = a.takeover(ctx, batch[0])
	case *LinkDNS:
		err = a.linkDNS(ctx, batch[0])
	case *Netns:
		err = a.makeNetns(batch[0])
	default:
		err = a.requests(ctx, batch)
	}
	if p := a.net.probe; p != nil && err == nil {
		p.After(batch[0].Do)
	}
	return err
}

// batch counts the changes at the front that can be made together: by the same
// means, in the same namespace. With a probe it is one.
func (a *applier) batch(changes []Change) int {
	if a.net.probe != nil {
		return 1
	}
	first := changes[0].Do
	for i, c := range changes {
		if i == nlconn.MaxWrite || i > 0 && !together(first, c.Do) {
			return i
		}
	}
	return len(changes)
}

func together(a, b Step) bool {
	if a.Object.Where() != b.Object.Where() {
		return false
	}
	if isRequest(a) || isRequest(b) {
		return isRequest(a) && isRequest(b)
	}
	switch a.Object.(type) {
	case *Sysctl:
		_, ok := b.Object.(*Sysctl)
		return ok
	case *Element: // an nftables batch that adds holds no deletes
		_, ok := b.Object.(*Element)
		return ok && a.Verb == b.Verb
	case *Flows:
		_, ok := b.Object.(*Flows)
		return ok
	}
	return false
}

// isRequest tells whether a step is made by rtnetlink.
func isRequest(st Step) bool {
	if c, ok := st.Object.(*Sysctl); ok {
		_, _, ok := c.byRequest()
		return ok
	}
	_, ok := st.Object.(rtObject)
	return ok
}

// sysctls writes the settings of one namespace in one visit.
func (a *applier) sysctls(batch []Change) error {
	ns, err := a.namespace(batch[0].Do.Object.Where())
	if err != nil {
		return err
	}
	done := 0
	err = ns.visit(func() error {
		for _, c := range batch {
			if err := c.Do.Object.(*Sysctl).write(); err != nil {
				return err
			}
			done++
		}
		return nil
	})
	a.done = append(a.done, batch[:done]...)
	if err != nil {
		return describeStep(batch[min(done, len(batch)-1)].Do, err)
	}
	return nil
}

// elements makes one nftables transaction.
func (a *applier) elements(ctx context.Context, batch []Change) error {
	els := make([]*nft.Element, len(batch))
	for i, c := range batch {
		els[i] = (*nft.Element)(c.Do.Object.(*Element))
	}
	run := a.net.nft.Add
	if batch[0].Do.Verb == VerbDel {
		run = a.net.nft.Del
	}
	err := run(ctx, els)
	if err == nil {
		a.done = append(a.done, batch...)
	}
	return err
}

// flows deletes the tracked connections of one namespace in one pass.
func (a *applier) flows(ctx context.Context, batch []Change) error {
	all := make([]*Flows, len(batch))
	for i, c := range batch {
		all[i] = c.Do.Object.(*Flows)
	}
	err := a.flush(ctx, all)
	if err == nil {
		a.done = append(a.done, batch...)
	}
	return err
}

// describeStep gives an errno its meaning, with the step that it belongs to.
// The kernel loads a link kind's module by itself, so one that it does not know
// is not installed or must not be loaded, which modprobe tells.
func describeStep(st Step, err error) error {
	err = nlconn.Explain(err, fmt.Sprintf("%s %s", st.Verb, st.Object))
	if l, ok := st.Object.(*Link); ok && st.Verb == VerbAdd && l.Kind != "" && l.Bridge == nil && errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: see what 'modprobe rtnl-link-%s' says", err, l.Kind)
	}
	return err
}
