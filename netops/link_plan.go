package netops

import (
	"context"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// plan makes the link if it has a kind and is absent. Otherwise it sets the attributes
// that differ.
func (l *Link) plan(ctx context.Context, s *session) ([]Change, error) {
	if l.Kind == "" {
		return l.planSet(ctx, s)
	}
	var have *rtnl.Link
	if !s.isAbsentPlace(l.In) {
		var err error
		if have, err = s.findLink(ctx, l.In, l.Name); err != nil {
			return nil, err
		}
	}
	if have != nil {
		return l.planPresent(ctx, s, have)
	}
	if err := l.planParent(ctx, s); err != nil {
		return nil, err
	}
	if p := l.Peer; p != nil && !s.isAbsentPlace(p.In) {
		other, err := s.findLink(ctx, p.In, p.Name)
		if err != nil {
			return nil, err
		}
		if other != nil {
			return nil, peerExists(p)
		}
	}
	s.made[l.ref()], s.lasting[l.ref()] = true, l.Shared
	if l.Peer != nil {
		s.made[linkRef{l.Peer.In, l.Peer.Name}] = true
	}
	c := Change{Do: Step{VerbAdd, l}}
	if !l.Shared {
		c.Undo = &Step{VerbDel, l.inverse()}
	}
	return []Change{c}, nil
}

// inverse returns the fields that identify the link for its deletion. The alias ensures
// that only the link that was made is deleted. A shared veth gets its alias in a second
// write, so its MAC identifies it too.
func (l *Link) inverse() *Link {
	o := &Link{In: l.In, Shared: l.Shared, Name: l.Name, Kind: l.Kind, Alias: l.Alias}
	if l.Shared {
		o.MAC = l.MAC
	}
	return o
}

// planPresent plans for a wanted link whose name exists already. An exclusive link is an
// error. A shared link is brought up, made promiscuous and its MAC is fixed, as wanted;
// its other attributes stay.
func (l *Link) planPresent(ctx context.Context, s *session, have *rtnl.Link) ([]Change, error) {
	if !l.Shared {
		return nil, fmt.Errorf("%s %w%s", l.title(), ErrExists, labelled(have.Alias))
	}
	if have.Kind != l.Kind {
		return nil, fmt.Errorf("%s is a link of kind %q, not %q: %w", l.title(), have.Kind, l.Kind, ErrConflict)
	}
	d := differences{object: l}
	if err := l.verifyKind(ctx, s, have, &d); err != nil {
		return nil, err
	}
	if len(d.list) > 0 {
		return nil, fmt.Errorf("%s has %s instead of %s: %w", l.title(), d.list[0].Have, d.list[0].Want, ErrConflict)
	}
	set := &Link{In: l.In, Shared: true, Name: l.Name, Kind: l.Kind}
	if err := l.differTunnel(ctx, s, have, set); err != nil {
		return nil, err
	}
	set.Up = l.Up && !have.IsUp()
	set.Promisc = l.Promisc && !have.IsPromisc()
	if l.Bridge != nil && l.Bridge.KeepMAC {
		set.MAC = l.MAC
		if slices.ContainsFunc(have.MAC, func(b byte) bool { return b != 0 }) {
			set.MAC = have.MAC.String()
		}
	}
	if !set.Up && !set.Promisc && set.MAC == "" && set.VXLAN == nil {
		return nil, nil
	}
	return []Change{{Do: Step{VerbSet, set}}}, nil
}

// differTunnel adds to set what differs of the overlay's device: its parent, its local address, and
// whether it learns.
func (l *Link) differTunnel(ctx context.Context, s *session, have *rtnl.Link, set *Link) error {
	if l.VXLAN == nil {
		return nil
	}
	parent, err := s.indexOf(ctx, l.parentIn(), l.Parent)
	if err == nil && (have.Peer != parent || l.VXLAN.Local != have.VXLAN.Local || l.VXLAN.Learning != have.VXLAN.Learning) {
		set.Parent, set.VNI = l.Parent, l.VNI
		set.VXLAN = &VXLAN{Local: l.VXLAN.Local, Learning: l.VXLAN.Learning} // the kernel refuses the others in a change
	}
	return err
}

// planSet changes a link that must exist. The inverse restores the previous attributes.
func (l *Link) planSet(ctx context.Context, s *session) ([]Change, error) {
	have := s.moved[l.ref()]
	if have == nil && s.isNew(l.In, l.Name) {
		return []Change{{Do: Step{VerbSet, l}}}, nil
	}
	if have == nil {
		var err error
		if have, err = s.link(ctx, l.In, l.Name); err != nil {
			return nil, err
		}
	}
	present, err := l.present(ctx, s, have)
	if err != nil {
		return nil, err
	}
	set, old := l.difference(have, present)
	if set == nil {
		return nil, nil
	}
	c := Change{Do: Step{VerbSet, set}}
	if !l.Shared {
		if s.moved[l.ref()] == nil {
			old.Index = have.Index
		}
		c.Undo = &Step{VerbSet, old}
	}
	return []Change{c}, nil
}

// verify compares the attributes that l sets with those of the existing link.
func (l *Link) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.findLink(ctx, l.In, l.Name)
	if err != nil || have == nil {
		return absentIf(err, l)
	}
	d := differences{object: l}
	if l.Kind != "" {
		d.compare("kind", l.Kind, have.Kind)
	}
	if err := l.verifyKind(ctx, s, have, &d); err != nil {
		return nil, err
	}
	if err := l.verifySettings(ctx, s, have, "", &d); err != nil {
		return nil, err
	}
	if l.Bridge != nil && l.Bridge.VLANFiltering {
		d.compare("vlan_filtering", "on", onOff(have.VLANFiltering))
	}
	if l.Alias != "" && !l.Shared {
		d.compare("label", ownLabel(l.Alias), ownLabel(have.Alias))
	}
	if l.Port != nil && have.Port != nil {
		d.compare("hairpin", onOff(l.Port.Hairpin), onOff(have.Port.Hairpin))
		if l.Port.Isolated { // not compared otherwise: a chained plugin may isolate the port
			d.compare("isolated", onOff(true), onOff(have.Port.Isolated))
		}
		verifyPort(l.Port, have.Port, &d)
	}
	if l.Peer == nil {
		return d.list, nil
	}
	return l.verifyPeer(ctx, s, have, d)
}

// verifyPeer compares the attributes of the peer and checks that it is the other end of
// this link.
func (l *Link) verifyPeer(ctx context.Context, s *session, own *rtnl.Link, d differences) ([]Difference, error) {
	p := l.Peer
	have, err := s.findLink(ctx, p.In, p.Name)
	if err != nil {
		return nil, err
	}
	if have == nil || have.Index != own.Peer || have.Peer != own.Index {
		what := "absent"
		if have != nil {
			what = "another link"
		}
		d.add(fmt.Sprintf("peer %q", p.Name), what)
		return d.list, nil
	}
	err = p.link().verifySettings(ctx, s, have, "peer ", &d)
	return d.list, err
}
