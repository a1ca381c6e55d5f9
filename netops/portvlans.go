package netops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// PortVLANs is the complete VLAN list of one bridge port (RTM_NEWLINK,
// AF_BRIDGE).
type PortVLANs struct {
	In    Place  `json:"in"`
	Link  string `json:"link"`
	VLANs []VLAN `json:"vlans"`
	// KeepDefault keeps the bridge's default VLAN (usually 1) on the port.
	KeepDefault bool `json:"keepDefault,omitempty"`
	// Self selects the bridge device itself instead of a port.
	Self bool `json:"self,omitempty"`
	// SharedPort marks a port that belongs to a shared link.
	SharedPort bool `json:"shared,omitempty"`
}

// VLAN is a range of VLAN IDs on a bridge port. If End is 0, it is ID alone.
type VLAN struct {
	ID       uint16 `json:"id"`
	End      uint16 `json:"end,omitempty"`
	PVID     bool   `json:"pvid,omitempty"`
	Untagged bool   `json:"untagged,omitempty"`
}

// Where returns the namespace of the port.
func (p *PortVLANs) Where() Place { return p.In }

// IsShared reports whether the port belongs to a shared link.
func (p *PortVLANs) IsShared() bool { return p.SharedPort }

// String formats the list as bridge vlan does.
func (p *PortVLANs) String() string {
	w := words{"vlans", vlanText(p.VLANs), "dev", p.Link}
	w.place(p.In)
	w.flag(p.KeepDefault, "beside the default")
	w.flag(p.Self, "self")
	return w.String()
}

func vlanText(list []VLAN) string {
	if len(list) == 0 {
		return "none"
	}
	texts := make([]string, len(list))
	for i, v := range list {
		t := fmt.Sprint(v.ID)
		if v.End > v.ID {
			t += fmt.Sprintf("-%d", v.End)
		}
		if v.PVID {
			t += " pvid"
		}
		if v.Untagged {
			t += " untagged"
		}
		texts[i] = t
	}
	return strings.Join(texts, ", ")
}

func (p *PortVLANs) validate() error {
	errs := []error{checkPlace(p.In), rtnl.CheckName(p.Link)}
	for _, v := range p.VLANs {
		if v.ID < 1 || v.ID > rtnl.MaxVLAN || v.End > rtnl.MaxVLAN || (v.End != 0 && v.End < v.ID) {
			errs = append(errs, fmt.Errorf("VLAN %s: %w", vlanText([]VLAN{v}), ErrInvalid))
		}
		if v.PVID && v.End > v.ID {
			errs = append(errs, fmt.Errorf("VLAN %s: only one can be the native one: %w", vlanText([]VLAN{v}), ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// wanted returns the complete desired list for a port that has the VLANs have.
func (p *PortVLANs) wanted(have rtnl.VLANs) rtnl.VLANs {
	set := rtnl.VLANs{}
	pvid := false
	for _, v := range p.VLANs {
		var flags uint16
		if v.PVID {
			flags |= nl.BRIDGE_VLAN_INFO_PVID
			pvid = true
		}
		if v.Untagged {
			flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
		}
		for id := v.ID; id <= max(v.ID, v.End); id++ {
			set[id] |= flags
		}
	}
	if !p.KeepDefault {
		return set
	}
	// The default VLAN is the native VLAN unless the list has another PVID.
	for id, flags := range have {
		_, listed := set[id]
		if id != 1 || listed {
			continue
		}
		if pvid {
			flags &^= nl.BRIDGE_VLAN_INFO_PVID
		}
		set[id] = flags
	}
	return set
}

// vlanList returns the set as VLANs in ascending order.
func vlanList(set rtnl.VLANs) (list []VLAN) {
	for _, r := range set.Ranges() {
		v := VLAN{ID: r.First, PVID: r.Flags&nl.BRIDGE_VLAN_INFO_PVID != 0, Untagged: r.Flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0}
		if r.Last > r.First {
			v.End = r.Last
		}
		list = append(list, v)
	}
	return list
}

func (p *PortVLANs) plan(ctx context.Context, s *session) ([]Change, error) {
	c := Change{Do: Step{VerbSet, p}}
	if s.isNew(p.In, p.Link) {
		return []Change{c}, nil
	}
	have, err := s.vlans(ctx, p.In, p.Link)
	if err != nil {
		return nil, err
	}
	if maps.Equal(have, p.wanted(have)) {
		return nil, nil
	}
	if !p.SharedPort {
		c.Undo = &Step{VerbSet, &PortVLANs{In: p.In, Link: p.Link, Self: p.Self, VLANs: vlanList(have)}}
	}
	return []Change{c}, nil
}

func (p *PortVLANs) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.vlans(ctx, p.In, p.Link)
	if errors.Is(err, ErrNotExist) {
		return absentIf(nil, p)
	}
	if err != nil {
		return nil, err
	}
	d := differences{object: p}
	if want := p.wanted(have); !maps.Equal(have, want) {
		d.add("vlans "+vlanText(vlanList(want)), "vlans "+vlanText(vlanList(have)))
	}
	return d.list, nil
}

func (p *PortVLANs) links() []string { return []string{p.Link} }

func (p *PortVLANs) removal() *Step { return nil }

// enqueue sends the collected requests first, because messages reads the port.
func (p *PortVLANs) enqueue(ctx context.Context, w *requestWriter, c Change) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	return w.enqueue(ctx, c)
}

// messages returns the requests that change the port's present VLANs to the
// desired ones.
func (p *PortVLANs) messages(ctx context.Context, s *session, _ Verb) ([]nlconn.Message, error) {
	have, err := s.vlans(ctx, p.In, p.Link)
	if err != nil {
		return nil, err
	}
	index, err := s.indexOf(ctx, p.In, p.Link)
	if err != nil {
		return nil, err
	}
	want := p.wanted(have)
	drop, add := rtnl.VLANs{}, rtnl.VLANs{}
	for id := range have {
		if _, ok := want[id]; !ok {
			drop[id] = 0
		}
	}
	for id, flags := range want {
		if old, ok := have[id]; !ok || old != flags {
			add[id] = flags
		}
	}
	var msgs []nlconn.Message
	if len(drop) > 0 {
		msgs = append(msgs, drop.Message(unix.RTM_DELVLAN, index))
	}
	if len(add) > 0 {
		msgs = append(msgs, add.Message(unix.RTM_NEWVLAN, index))
	}
	return msgs, nil
}

// VLANs reads the VLANs of a port of the host's bridges, or of a bridge itself.
func (n *Net) VLANs(ctx context.Context, link string) ([]VLAN, error) {
	set, err := n.session(nil).vlans(ctx, Host, link)
	return vlanList(set), err
}

// vlans reads the VLANs of one port.
func (s *session) vlans(ctx context.Context, p Place, link string) (rtnl.VLANs, error) {
	index, c, err := s.linkConn(ctx, p, link)
	if err != nil {
		return nil, err
	}
	set, err := c.PortVLANs(ctx, index)
	return set, nlconn.Explain(err, fmt.Sprintf("list VLANs of %q", link))
}
