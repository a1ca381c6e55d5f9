package netops

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// maxVLAN is the highest VLAN ID; 4095 is reserved (IEEE 802.1Q).
	maxVLAN = 4094
	// sizeofVLANMessage is the size of struct br_vlan_msg.
	sizeofVLANMessage = 8
	// Attributes of RTM_*VLAN messages (linux/if_bridge.h).
	vlanEntry      = 1 // BRIDGE_VLANDB_ENTRY
	vlanEntryInfo  = 1 // BRIDGE_VLANDB_ENTRY_INFO
	vlanEntryRange = 2 // BRIDGE_VLANDB_ENTRY_RANGE
)

// vlanMessage is struct br_vlan_msg.
type vlanMessage struct{ index uint32 }

// Serialize returns the bytes of the message header.
func (m *vlanMessage) Serialize() []byte {
	return binary.NativeEndian.AppendUint32([]byte{unix.AF_BRIDGE, 0, 0, 0}, m.index)
}

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
		if v.ID < 1 || v.ID > maxVLAN || v.End > maxVLAN || (v.End != 0 && v.End < v.ID) {
			errs = append(errs, fmt.Errorf("VLAN %s: %w", vlanText([]VLAN{v}), ErrInvalid))
		}
		if v.PVID && v.End > v.ID {
			errs = append(errs, fmt.Errorf("VLAN %s: only one can be the native one: %w", vlanText([]VLAN{v}), ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// vlanSet maps each VLAN ID of a port to BRIDGE_VLAN_INFO_PVID and _UNTAGGED
// flags.
type vlanSet map[uint16]uint16

// wanted returns the complete desired list for a port that has the VLANs have.
func (p *PortVLANs) wanted(have vlanSet) vlanSet {
	set := vlanSet{}
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

// list returns the set as VLANs in ascending order.
func (s vlanSet) list() []VLAN {
	var list []VLAN
	for _, id := range s.ids() {
		flags := s[id]
		v := VLAN{ID: id, PVID: flags&nl.BRIDGE_VLAN_INFO_PVID != 0, Untagged: flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0}
		if n := len(list) - 1; n >= 0 && max(list[n].ID, list[n].End) == id-1 && !v.PVID && !list[n].PVID && list[n].Untagged == v.Untagged {
			list[n].End = id
			continue
		}
		list = append(list, v)
	}
	return list
}

func (s vlanSet) ids() []uint16 {
	ids := make([]uint16, 0, len(s))
	for id := range s {
		ids = append(ids, id)
	}
	sorting.Func(ids, cmp.Compare)
	return ids
}

func (s vlanSet) equal(o vlanSet) bool {
	for id, flags := range s {
		if other, ok := o[id]; !ok || other != flags {
			return false
		}
	}
	return len(s) == len(o)
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
	if have.equal(p.wanted(have)) {
		return nil, nil
	}
	if !p.SharedPort {
		c.Undo = &Step{VerbSet, &PortVLANs{In: p.In, Link: p.Link, Self: p.Self, VLANs: have.list()}}
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
	if want := p.wanted(have); !have.equal(want) {
		d.add("vlans "+vlanText(want.list()), "vlans "+vlanText(have.list()))
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
	drop, add := vlanSet{}, vlanSet{}
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
	if m := vlanRequest(unix.RTM_DELVLAN, index, drop); m != nil {
		msgs = append(msgs, *m)
	}
	if m := vlanRequest(unix.RTM_NEWVLAN, index, add); m != nil {
		msgs = append(msgs, *m)
	}
	return msgs, nil
}

// vlanRequest adds or deletes VLANs of the device with an index. It returns nil
// for an empty set.
func vlanRequest(kind uint16, index int, set vlanSet) *nlconn.Message {
	if len(set) == 0 {
		return nil
	}
	m := &nlconn.Message{Kind: kind, Header: &vlanMessage{uint32(index)}}
	for _, v := range set.list() {
		var flags uint16
		if v.PVID {
			flags |= nl.BRIDGE_VLAN_INFO_PVID
		}
		if v.Untagged {
			flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
		}
		m.Nest(vlanEntry, func() {
			m.Bytes(vlanEntryInfo, append(nl.Uint16Attr(flags), nl.Uint16Attr(v.ID)...))
			if v.End > v.ID {
				m.Uint16(vlanEntryRange, v.End)
			}
		})
	}
	return m
}

// vlans reads the VLANs of one port.
func (s *session) vlans(ctx context.Context, p Place, link string) (vlanSet, error) {
	index, c, err := s.linkConn(ctx, p, link)
	if err != nil {
		return nil, err
	}
	set := vlanSet{}
	m := nlconn.Message{Kind: unix.RTM_GETVLAN, Header: &vlanMessage{uint32(index)}}
	err = c.Dump(ctx, m, func() { clear(set) }, func(_ uint16, data []byte) error {
		if len(data) < sizeofVLANMessage {
			return fmt.Errorf("vlan message of %d bytes: %w", len(data), unix.EBADMSG)
		}
		return nlconn.EachAttr(data[sizeofVLANMessage:], set.parseEntry)
	})
	return set, nlconn.Explain(err, fmt.Sprintf("list VLANs of %q", link))
}

// parseEntry parses BRIDGE_VLANDB_ENTRY.
func (s vlanSet) parseEntry(kind uint16, b []byte) error {
	if kind != vlanEntry {
		return nil
	}
	var info []byte
	var flags, first, last uint16
	err := nlconn.ReadAttrs(b, []nlconn.Attr{{Kind: vlanEntryInfo, At: &info}, {Kind: vlanEntryRange, At: &last}})
	if len(info) >= nl.SizeofBridgeVlanInfo {
		flags, first = binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])
	}
	if first == 0 || first > maxVLAN || last > maxVLAN {
		return err
	}
	for id := first; id <= max(first, last); id++ {
		s[id] = flags & (nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED)
	}
	return err
}
