package netops

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// kernelObject is the internal interface of every kind of Object.
type kernelObject interface {
	Object
	// validate checks the object's own fields. The error wraps ErrInvalid.
	validate() error
	// plan reads the kernel and lists the changes that make the object.
	plan(ctx context.Context, s *session) ([]Change, error)
	// verify lists the differences between the object and the kernel.
	verify(ctx context.Context, s *session) ([]Difference, error)
}

// rtObject is an object that is made with rtnetlink requests.
type rtObject interface {
	kernelObject
	// messages returns the requests of a step.
	messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error)
}

var (
	_ rtObject     = (*Link)(nil)
	_ rtObject     = (*Addr)(nil)
	_ rtObject     = (*Route)(nil)
	_ rtObject     = (*Neigh)(nil)
	_ rtObject     = (*Rule)(nil)
	_ rtObject     = (*PortVLANs)(nil)
	_ rtObject     = (*Sysctl)(nil)
	_ rtObject     = (*Qdisc)(nil)
	_ rtObject     = (*Redirect)(nil)
	_ kernelObject = (*Move)(nil)
	_ kernelObject = (*Element)(nil)
	_ kernelObject = (*Forward)(nil)
	_ kernelObject = (*ZoneSource)(nil)
	_ kernelObject = (*VRF)(nil)
	_ kernelObject = (*Flows)(nil)
	_ kernelObject = (*Takeover)(nil)
	_ kernelObject = (*LinkDNS)(nil)
	_ kernelObject = (*Netns)(nil)
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
// Apply uses the interface indexes that the Plan directly before it read. If another
// program deleted and recreated a bridge since, Apply fails; a new Plan finds the new
// bridge. A bridge that was only renamed since still gets the port.
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
	// a.done includes changes that may have failed. That is safe: an inverse accepts an
	// absent object.
	return errors.Join(err, n.Undo(ctx, a.done, container))
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
		if err := a.probed(ctx, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// probed makes one batch and calls the probe before and after it.
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
		err = a.forwards(ctx, batch)
	case *ZoneSource:
		err = a.zoneSource(ctx, batch[0])
	case *VRF:
		err = a.vrf(ctx, batch[0])
	case *Flows:
		err = a.flows(ctx, batch)
	case *Takeover:
		err = a.takeover(ctx, batch[0])
	case *LinkDNS:
		err = a.copyLinkDNS(ctx, batch[0])
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

// batch returns how many of the first changes can be made together. They use the same
// kernel interface, in the same namespace. With a probe it returns 1.
func (a *applier) batch(changes []Change) int {
	if a.net.probe != nil {
		return 1
	}
	first := changes[0].Do
	for i, c := range changes {
		if i == nlconn.MaxWrite || i > 0 && !batchable(first, c.Do) {
			return i
		}
	}
	return len(changes)
}

func batchable(a, b Step) bool {
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
	case *Element: // one nftables batch either adds or deletes
		_, ok := b.Object.(*Element)
		return ok && a.Verb == b.Verb
	case *Forward:
		_, ok := b.Object.(*Forward)
		return ok
	case *Flows:
		_, ok := b.Object.(*Flows)
		return ok
	}
	return false
}

// isRequest reports whether a step is made with rtnetlink requests.
func isRequest(st Step) bool {
	if c, ok := st.Object.(*Sysctl); ok {
		_, _, ok := c.byRequest()
		return ok
	}
	_, ok := st.Object.(rtObject)
	return ok
}

// sysctls enters one namespace once and writes all its settings.
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

// elements adds or deletes nftables elements in one transaction.
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
	err := a.deleteFlows(ctx, all)
	if err == nil {
		a.done = append(a.done, batch...)
	}
	return err
}

// describeStep adds the step and the meaning of the errno to an error. The kernel loads
// the module of a link kind by itself. If it does not know the kind, the module is not
// installed or must not be loaded; modprobe prints which.
func describeStep(st Step, err error) error {
	err = nlconn.Explain(err, fmt.Sprintf("%s %s", st.Verb, st.Object))
	if l, ok := st.Object.(*Link); ok && st.Verb == VerbAdd && l.Kind != "" && l.Bridge == nil && errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: see what 'modprobe rtnl-link-%s' says", err, l.Kind)
	}
	return err
}
