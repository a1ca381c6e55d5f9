package netops

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// VRF is a link's membership of a VRF (Documentation/networking/vrf.rst). The
// device is created and set up for its first member, and deleted with its last.
// The caller must prevent concurrent changes of members in the same namespace.
//
// A link that is up is set down and up again when it joins and leaves. That
// deletes its routes, except the kernel's connected routes, which move to the
// VRF's table. It also deletes its IPv6 addresses, unless keep_addr_on_down is
// set.
type VRF struct {
	In Place `json:"in"`
	// Name is the name of the device, and Table its routing table.
	Name  string `json:"name"`
	Table int    `json:"table"`
	// Link is the member. It must not belong to a VRF, bridge or bond.
	Link string `json:"link"`
	// Alias is the label of the device. An inverse without an Alias deletes
	// an unlabelled device if the link was its last member.
	Alias string `json:"alias,omitempty"`
	// LinkIndex identifies the link that an inverse removes, even if it was
	// renamed.
	LinkIndex int `json:"linkIndex,omitempty"`
}

// Where returns the namespace of the VRF and the link.
func (v *VRF) Where() Place { return v.In }

// IsShared returns false: the membership belongs to the link. The device is
// created for its first member and deleted with its last.
func (v *VRF) IsShared() bool { return false }

// String formats the membership as ip link does, with the device's table.
func (v *VRF) String() string {
	w := words{"link", v.Link}
	w.place(v.In)
	w = append(w, "vrf", v.Name)
	w.number("table", v.Table)
	return w.String()
}

func (v *VRF) validate() error {
	errs := []error{
		checkPlace(v.In), rtnl.CheckName(v.Name), rtnl.CheckName(v.Link), checkAlias(v.Alias), checkIndex(v.LinkIndex),
		rtnl.CheckRange("table", v.Table, 0, 1<<32-1),
	}
	if v.Name == v.Link {
		errs = append(errs, fmt.Errorf("link %q in itself: %w", v.Link, ErrInvalid))
	}
	return errors.Join(errs...)
}

// plan refuses a VRF with another table, another link with the VRF's name, and a
// link that has a master.
func (v *VRF) plan(ctx context.Context, s *session) ([]Change, error) {
	c := Change{Do: Step{VerbAdd, v}}
	if s.isNew(v.In, v.Link) {
		return []Change{c}, nil
	}
	if _, err := v.device(ctx, s); err != nil {
		return nil, err
	}
	l, err := s.link(ctx, v.In, v.Link)
	if err != nil {
		return nil, err
	}
	if l.Master != 0 {
		master, err := s.linkName(ctx, v.In, l.Master)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("interface %q is in %q already: %w", v.Link, orNone(master), ErrConflict)
	}
	back := *v
	back.LinkIndex = l.Index
	c.Undo = &Step{VerbDel, &back}
	return []Change{c}, nil
}

// device reads the VRF. It returns nil if it is absent.
func (v *VRF) device(ctx context.Context, s *session) (*rtnl.Link, error) {
	have, err := s.findLink(ctx, v.In, v.Name)
	if err != nil || have == nil {
		return nil, err
	}
	if have.Kind != rtnl.KindVRF {
		return nil, fmt.Errorf("interface %q is a link of kind %q, not %q: %w", v.Name, have.Kind, rtnl.KindVRF, ErrConflict)
	}
	if have.Table != v.Table {
		return nil, fmt.Errorf("VRF %q has table %d, not %d: %w", v.Name, have.Table, v.Table, ErrConflict)
	}
	return have, nil
}

func (v *VRF) verify(ctx context.Context, s *session) ([]Difference, error) {
	vrf, err := s.findLink(ctx, v.In, v.Name)
	if err != nil || vrf == nil {
		return absentIf(err, v)
	}
	l, err := s.findLink(ctx, v.In, v.Link)
	if err != nil || l == nil {
		return absentIf(err, v)
	}
	d := differences{object: v}
	d.compare("kind", rtnl.KindVRF, vrf.Kind)
	d.compare("state", upDown(true), upDown(vrf.IsUp()))
	d.compare("table", strconv.Itoa(v.Table), strconv.Itoa(vrf.Table))
	if l.Master != vrf.Index {
		master, err := s.linkName(ctx, v.In, l.Master)
		if err != nil {
			return nil, err
		}
		d.compare("master", v.Name, orNone(master))
	}
	return d.list, nil
}

// apply makes one membership. It records the change first, because the inverse
// accepts absent objects.
func (v *VRF) apply(ctx context.Context, run *applier, batch []Change) error {
	run.done = append(run.done, batch...)
	return describeStep(batch[0].Do, v.join(ctx, run.session))
}

func (v *VRF) undo(ctx context.Context, s *session, verb Verb) error {
	if verb != VerbDel {
		return fmt.Errorf("an inverse that makes a member: %w", ErrInvalid)
	}
	return v.leave(ctx, s)
}

// join creates the VRF if it is absent, and makes the link a member. The kernel
// sets a link that is up down and up again. That deletes its routes and, unless
// keep_addr_on_down is set, its IPv6 addresses (vrf_add_slave, cycle_netdev).
func (v *VRF) join(ctx context.Context, s *session) error {
	c, err := s.conn(v.In)
	if err != nil {
		return err
	}
	vrf, err := v.device(ctx, s)
	if err != nil {
		return err
	}
	if vrf == nil {
		if err := v.create(ctx, s, c); err != nil {
			return err
		}
		if vrf, err = s.link(ctx, v.In, v.Name); err != nil {
			return err
		}
	}
	index, err := s.indexOf(ctx, v.In, v.Link)
	if err != nil {
		return err
	}
	up := nl.NewIfInfomsg(unix.AF_UNSPEC)
	up.Index, up.Flags, up.Change = int32(vrf.Index), unix.IFF_UP, unix.IFF_UP
	results, broken := c.Exchange(ctx, []nlconn.Message{{Kind: unix.RTM_NEWLINK, Header: up}, masterMessage(index, vrf.Index)})
	return errors.Join(append(results, broken)...)
}

// create creates and labels the device in one write.
func (v *VRF) create(ctx context.Context, s *session, c *rtnl.Conn) error {
	index := (&Link{Name: v.Name, Alias: v.Alias}).chosenIndex()
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, index)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	m.Text(unix.IFLA_IFNAME, v.Name)
	(&rtnl.Link{Kind: rtnl.KindVRF, KindState: rtnl.KindState{Table: v.Table}}).AddKind(&m.Body)
	label, err := (&Link{In: v.In, Name: v.Name, Alias: v.Alias}).setAt(ctx, s, index)
	if err != nil {
		return err
	}
	results, broken := c.Exchange(ctx, []nlconn.Message{m, label})
	if errors.Is(results[0], unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: see what 'modprobe vrf' says", results[0])
	}
	return errors.Join(append(results, broken)...)
}

// leave removes the link from the VRF, and deletes the VRF if this was its last
// member. The VRF must have the label. If v has no label (the reference plugin's
// VRF), it must be the VRF that contained the link. Link and VRF can have been
// renamed. An absent object is not an error.
func (v *VRF) leave(ctx context.Context, s *session) error {
	c, err := s.conn(v.In)
	if err != nil {
		return err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return err
	}
	vrf, member := v.find(links)
	if vrf == nil {
		return nil
	}
	if member != nil {
		if err := c.One(ctx, masterMessage(member.Index, 0)); err != nil && !nlconn.IsAbsent(err) {
			return err
		}
	}
	if v.Alias == "" && member == nil || v.Alias != "" && !isLabelled(vrf.Alias, v.Alias) {
		return nil
	}
	for _, l := range links {
		if l.Master == vrf.Index && l != member {
			return nil
		}
	}
	delete(s.index, linkRef{v.In, vrf.Name})
	return c.One(ctx, rtnl.LinkMessage(unix.RTM_DELLINK, vrf.Index))
}

// find returns the VRF that contains the link if it has v's name, or v's table
// under another name. A VRF that does not contain the link is found by its name
// only.
func (v *VRF) find(links []*rtnl.Link) (vrf, member *rtnl.Link) {
	is := func(l *rtnl.Link) bool {
		return l.Kind == rtnl.KindVRF && (l.Name == v.Name || v.Table != 0 && l.Table == v.Table)
	}
	for _, l := range links {
		if v.LinkIndex != 0 && l.Index == v.LinkIndex || v.LinkIndex == 0 && l.Name == v.Link {
			member = l
		}
	}
	for _, l := range links {
		if member != nil && member.Master == l.Index && is(l) {
			return l, member
		}
	}
	for _, l := range links {
		if is(l) && l.Name == v.Name {
			vrf = l
		}
	}
	return vrf, nil
}

// masterMessage enslaves a link to master, or releases it for 0.
func masterMessage(link, master int) nlconn.Message {
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, link)
	m.Uint32(unix.IFLA_MASTER, uint32(master))
	return m
}
