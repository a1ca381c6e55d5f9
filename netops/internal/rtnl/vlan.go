package rtnl

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// MaxVLAN is the highest VLAN ID; 4095 is reserved (IEEE 802.1Q).
	MaxVLAN = 4094
	// sizeofVLANHeader is the size of struct br_vlan_msg.
	sizeofVLANHeader = 8
	// Attributes of RTM_*VLAN messages (linux/if_bridge.h).
	vlanEntry      = 1 // BRIDGE_VLANDB_ENTRY
	vlanEntryInfo  = 1 // BRIDGE_VLANDB_ENTRY_INFO
	vlanEntryRange = 2 // BRIDGE_VLANDB_ENTRY_RANGE
	vlanFlags      = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED
)

// VLANs has the flags BRIDGE_VLAN_INFO_PVID and _UNTAGGED of each VLAN ID of a bridge port.
type VLANs map[uint16]uint16

// VLANRange is a range of VLAN IDs with the same flags.
type VLANRange struct{ First, Last, Flags uint16 }

// Ranges returns the IDs in ascending order. A PVID is a range of its own.
func (s VLANs) Ranges() []VLANRange {
	ids := make([]uint16, 0, len(s))
	for id := range s {
		ids = append(ids, id)
	}
	sorting.Func(ids, cmp.Compare)
	var all []VLANRange
	for _, id := range ids {
		if n := len(all) - 1; n >= 0 && all[n].Last == id-1 && all[n].Flags == s[id] && s[id]&nl.BRIDGE_VLAN_INFO_PVID == 0 {
			all[n].Last = id
			continue
		}
		all = append(all, VLANRange{id, id, s[id]})
	}
	return all
}

// PortVLANs reads the VLANs of the port with an index.
func (c *Conn) PortVLANs(ctx context.Context, link int) (VLANs, error) {
	s := VLANs{}
	err := c.Dump(ctx, nlconn.Message{Kind: unix.RTM_GETVLAN, Body: vlanHeader(link)}, func() { clear(s) }, func(_ uint16, data []byte) error { return s.parse(data) })
	return s, err
}

// Message returns the request that adds the VLANs to a port, or with RTM_DELVLAN deletes them.
func (s VLANs) Message(kind uint16, link int) nlconn.Message {
	m := nlconn.Message{Kind: kind, Body: vlanHeader(link)}
	for _, r := range s.Ranges() {
		m.Nest(vlanEntry, func() {
			m.Bytes(vlanEntryInfo, append(nl.Uint16Attr(r.Flags), nl.Uint16Attr(r.First)...))
			if r.Last > r.First {
				m.Uint16(vlanEntryRange, r.Last)
			}
		})
	}
	return m
}

// vlanHeader returns struct br_vlan_msg.
func vlanHeader(link int) nlconn.Body {
	return binary.NativeEndian.AppendUint32([]byte{unix.AF_BRIDGE, 0, 0, 0}, uint32(link))
}

// parse reads the body of RTM_NEWVLAN.
func (s VLANs) parse(b []byte) error {
	if len(b) < sizeofVLANHeader {
		return fmt.Errorf("vlan message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	return nlconn.EachAttr(b[sizeofVLANHeader:], s.parseEntry)
}

// parseEntry reads BRIDGE_VLANDB_ENTRY.
func (s VLANs) parseEntry(kind uint16, b []byte) error {
	if kind != vlanEntry {
		return nil
	}
	var info []byte
	var flags, first, last uint16
	err := nlconn.ReadAttrs(b, []nlconn.Attr{{Kind: vlanEntryInfo, At: &info}, {Kind: vlanEntryRange, At: &last}})
	if len(info) >= nl.SizeofBridgeVlanInfo {
		flags, first = binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])
	}
	if first == 0 || first > MaxVLAN || last > MaxVLAN {
		return err
	}
	for id := first; id <= max(first, last); id++ {
		s[id] = flags & vlanFlags
	}
	return err
}
