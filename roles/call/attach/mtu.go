package attach

import (
	"cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// mtus are the MTUs of the container's interface and of its host's end; 0 is unknown.
type mtus struct{ inside, host int }

// of returns the MTU of a link, or nil for other links.
func (m *mtus) of(in *Input, inside bool, name string) *int {
	switch {
	case inside && name == in.Key.IfName:
		return &m.inside
	case !inside && name == in.HostLink:
		return &m.host
	}
	return nil
}

// eachMTU calls fn for the link of an object, and for its peer.
func eachMTU(o netops.Object, fn func(inside bool, name string, mtu *int)) {
	l, ok := o.(*netops.Link)
	if !ok {
		return
	}
	fn(l.In == netops.Container, l.Name, &l.MTU)
	if l.Peer != nil {
		fn(l.Peer.In == netops.Container, l.Peer.Name, &l.Peer.MTU)
	}
}

// expectMTUs replaces the MTUs of CHECK's spec by those of prevResult, else by those that
// the recorded roles set last. The configuration may have changed since ADD, and a chained
// plugin may have set others.
func expectMTUs(spec *netops.Spec, in *Input, rec *store.Attachment) error {
	var want mtus
	if rec != nil {
		changes, err := attachment.Changes(rec)
		if err != nil {
			return err
		}
		for _, c := range changes {
			eachMTU(c.Do.Object, func(inside bool, name string, mtu *int) {
				if to := want.of(in, inside, name); to != nil {
					*to = cmp.Or(*mtu, *to)
				}
			})
		}
	}
	for _, i := range in.Prev.Interfaces {
		if to := want.of(in, i.Sandbox != "", i.Name); to != nil {
			*to = cmp.Or(i.Mtu, *to)
		}
	}
	for _, o := range spec.Objects {
		eachMTU(o, func(inside bool, name string, mtu *int) {
			if from := want.of(in, inside, name); from != nil {
				*mtu, *from = *from, 0 // other objects of the same link do not repeat the difference
			}
		})
	}
	return nil
}
