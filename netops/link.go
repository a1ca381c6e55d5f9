package netops

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Where returns the namespace that the link is made in.
func (l *Link) Where() Place { return l.In }

// IsShared reports whether attachments share the link.
func (l *Link) IsShared() bool { return l.Shared }

func (l *Link) jsonKey() string { return "link" }

func (l *Link) ref() linkRef { return linkRef{l.In, l.Name} }

// String formats the link like ip-link(8).
func (l *Link) String() string {
	w := words{"link", l.Name}
	w.place(l.In)
	w.value("link", l.Parent)
	w.flag(l.crossesNamespaces(), "link-netns "+string(l.ParentIn))
	w.value("type", l.Kind)
	l.kindWords(&w)
	w.value("address", l.MAC)
	w.number("mtu", l.MTU)
	w.value("master", l.Master)
	if b := l.Bridge; b != nil {
		w.flag(b.VLANFiltering, "vlan_filtering 1")
		w.flag(b.KeepMAC, "keep address")
	}
	if p := l.Port; p != nil {
		w = append(w, portWords(p)...)
	}
	w.flag(l.Promisc, "promisc on")
	w.flag(l.AllMulti, "allmulticast on")
	if l.TxQLen != nil {
		w = append(w, "txqueuelen", queueLength(*l.TxQLen))
	}
	if u := l.Unset; u != nil {
		w.flag(u.Promisc, "promisc off")
		w.flag(u.AllMulti, "allmulticast off")
		w.flag(u.Master, "nomaster")
		w.flag(u.Alias, `alias ""`)
	}
	w.flag(l.Up, "up")
	w.flag(l.Down, "down")
	if p := l.Peer; p != nil {
		w = append(w, "peer", "name", p.Name)
		if p.In != l.In {
			w.place(p.In)
		}
		w.value("address", p.MAC)
		w.number("mtu", p.MTU)
		w.value("master", p.Master)
		w.flag(p.Up, "up")
	}
	if l.Alias != "" {
		w = append(w, "alias", strconv.Quote(l.Alias))
	}
	return w.String()
}

func (l *Link) validate() error {
	errs := []error{checkPlace(l.In), rtnl.CheckName(l.Name), rtnl.CheckMAC(l.MAC), rtnl.CheckMTU(l.MTU), checkAlias(l.Alias), checkIndex(l.Index), l.validateKind()}
	if l.Master != "" {
		errs = append(errs, rtnl.CheckName(l.Master))
	}
	if l.Up && l.Down {
		errs = append(errs, fmt.Errorf("both up and down: %w", ErrInvalid))
	}
	if p := l.Peer; p != nil {
		if l.Kind != "veth" {
			errs = append(errs, fmt.Errorf("a peer on a link of kind %q: %w", l.Kind, ErrInvalid))
		}
		if l.In == Container && p.In != l.In {
			errs = append(errs, fmt.Errorf("a peer outside for a link in the container: %w", ErrInvalid))
		}
		errs = append(errs, checkPlace(p.In), rtnl.CheckName(p.Name), rtnl.CheckMAC(p.MAC), rtnl.CheckMTU(p.MTU))
		if p.Master != "" {
			errs = append(errs, rtnl.CheckName(p.Master))
		}
		if (p.Master != "" || p.Up) && p.In != l.In {
			errs = append(errs, fmt.Errorf("a peer in another namespace needs a separate link object: %w", ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

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
	set.Up = l.Up && !have.IsUp()
	set.Promisc = l.Promisc && !have.IsPromisc()
	if l.Bridge != nil && l.Bridge.KeepMAC {
		set.MAC = have.MAC.String()
	}
	if !set.Up && !set.Promisc && set.MAC == "" {
		return nil, nil
	}
	return []Change{{Do: Step{VerbSet, set}}}, nil
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
	master, err := s.linkName(ctx, l.In, have.Master)
	if err != nil {
		return nil, err
	}
	set, old := l.difference(have, master)
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

// difference returns two Links: set changes the attributes in which have differs from l,
// and old restores them. Both are nil if nothing differs.
func (l *Link) difference(have *rtnl.Link, master string) (set, old *Link) {
	set = &Link{In: l.In, Shared: l.Shared, Name: l.Name}
	old = &Link{In: l.In, Shared: l.Shared, Name: l.Name}
	var unset Unset
	if l.MAC != "" && !rtnl.SameMAC(l.MAC, have.MAC) {
		set.MAC, old.MAC = l.MAC, have.MAC.String()
	}
	if l.MTU != 0 && l.MTU != have.MTU {
		set.MTU, old.MTU = l.MTU, have.MTU
	}
	if l.Up && !have.IsUp() {
		set.Up, old.Down = true, true
	}
	if l.Down && have.IsUp() {
		set.Down, old.Up = true, true
	}
	if l.Alias != "" && l.Alias != have.Alias {
		set.Alias, old.Alias = l.Alias, have.Alias
		unset.Alias = have.Alias == ""
	}
	if l.Master != "" && l.Master != master {
		set.Master, old.Master = l.Master, master
		unset.Master = master == ""
	}
	if l.Port != nil && (have.Port == nil || !l.Port.Is(have.Port)) {
		set.Port, old.Port = l.Port, have.Port
	}
	var off Unset
	if u := l.Unset; u != nil && u.Master && master != "" {
		off.Master, old.Master = true, master
	}
	if u := l.Unset; u != nil && u.Alias && have.Alias != "" {
		off.Alias, old.Alias = true, have.Alias
	}
	l.differMode(have, set, old, &off, &unset)
	if off != (Unset{}) {
		set.Unset = &off
	}
	if unset != (Unset{}) {
		old.Unset = &unset
	}
	if *set == (Link{In: l.In, Shared: l.Shared, Name: l.Name}) {
		return nil, nil
	}
	return set, old
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
	if l.MAC != "" && !rtnl.SameMAC(l.MAC, have.MAC) {
		d.compare("address", strings.ToLower(l.MAC), have.MAC.String())
	}
	if l.MTU != 0 {
		d.compare("mtu", strconv.Itoa(l.MTU), strconv.Itoa(have.MTU))
	}
	if l.Up || l.Down {
		d.compare("state", upDown(l.Up), upDown(have.IsUp()))
	}
	l.verifyMode(have, &d)
	if l.Bridge != nil && l.Bridge.VLANFiltering {
		d.compare("vlan_filtering", "on", onOff(have.VLANFiltering))
	}
	if l.Alias != "" && !l.Shared {
		d.compare("label", ownLabel(l.Alias), ownLabel(have.Alias))
	}
	if l.Master != "" {
		master, err := s.linkName(ctx, l.In, have.Master)
		if err != nil {
			return nil, err
		}
		d.compare("master", l.Master, orNone(master))
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
	if p.MAC != "" && !rtnl.SameMAC(p.MAC, have.MAC) {
		d.compare("peer address", strings.ToLower(p.MAC), have.MAC.String())
	}
	if p.MTU != 0 {
		d.compare("peer mtu", strconv.Itoa(p.MTU), strconv.Itoa(have.MTU))
	}
	if p.Up {
		d.compare("peer state", "up", upDown(have.IsUp()))
	}
	if p.Master != "" {
		master, err := s.linkName(ctx, p.In, have.Master)
		if err != nil {
			return nil, err
		}
		d.compare("peer master", p.Master, orNone(master))
	}
	return d.list, nil
}

// title returns the kind and name of the link for errors.
func (l *Link) title() string {
	if l.Kind == rtnl.KindBridge {
		return fmt.Sprintf("bridge %q", l.Name)
	}
	return fmt.Sprintf("interface %q", l.Name)
}

// peerExists returns the error for a peer's name that another link has.
func peerExists(p *Peer) error {
	if p.In == Container {
		return fmt.Errorf("interface %q %w in the container's namespace", p.Name, ErrExists)
	}
	return fmt.Errorf("interface %q %w", p.Name, ErrExists)
}

// labelled returns the part of an error that names the alias of another program's link.
// It is "" if the link has no alias.
func labelled(alias string) string {
	if alias == "" {
		return ""
	}
	return fmt.Sprintf(", with the alias %q", alias)
}
