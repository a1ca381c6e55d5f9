package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// rtnl.HasParent tells whether the link stands on another one.
func (l *Link) hasParent() bool { return rtnl.HasParent(l.Kind) }

// parentIn is the place of the link below.
func (l *Link) parentIn() Place {
	if l.ParentIn == "" {
		return l.In
	}
	return l.ParentIn
}

// crosses tells whether the link's parent is in the other namespace.
func (l *Link) crosses() bool { return l.hasParent() && l.parentIn() != l.In }

// choosesIndex tells whether the link is made with an index of our choice.
func (l *Link) choosesIndex() bool {
	return l.hasParent() || l.Kind == rtnl.KindDummy || l.Kind == rtnl.KindTap || l.Kind == rtnl.KindIFB || l.Shared && l.Kind == rtnl.KindBridge
}

// chosenIndex is the interface index that the link is made with, far above
// those that a kernel has given out. It follows from the link's label and name,
// and serves four ends. Up to 6.14 a request that makes a link looks for the
// name in the namespace that it is sent in, and fails if the host has an
// interface named like the container's; given an index, it looks for that. The
// request that labels the link finds no other by it, so it cannot label a
// stranger's. So both go in one write, which no signal divides: a bridge that was
// made and not labelled would stay for ever once its record is lost. And a link
// that lost its maker in between all the same is known by it.
func (l *Link) chosenIndex() int {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", ownLabel(l.Alias), l.Name)
	return 1<<24 | int(h.Sum32()>>8)
}

// kindWords are the properties that only some kinds have, as ip link has them.
func (l *Link) kindWords(w *words) {
	w.value("mode", l.Mode)
	w.number("bcqueuelen", int(l.BCQueueLen))
	w.number("id", l.VLANID+l.VNI)
	if l.Group4.IsValid() {
		w.value("group", l.Group4.String())
	}
	if l.Kind == rtnl.KindTap {
		w.flag(true, "mode tap")
	}
	if l.Owner != nil {
		w.value("user", strconv.FormatUint(uint64(*l.Owner), 10))
	}
	if l.Group != nil {
		w.value("group", strconv.FormatUint(uint64(*l.Group), 10))
	}
	w.flag(l.MultiQueue, "multi_queue")
}

// isPlain tells whether the link has nothing that only some kinds have, as the
// links of most attachments: what follows would cost each of them.
func (l *Link) isPlain() bool {
	return l.Parent == "" && l.ParentIn == "" && l.Mode == "" && l.BCQueueLen == 0 && l.VLANID == 0 && l.VNI == 0 && !l.Group4.IsValid() &&
		l.Owner == nil && l.Group == nil && !l.MultiQueue
}

// validateKind judges what only some kinds have.
func (l *Link) validateKind() error {
	if l.isPlain() {
		return nil
	}
	var errs []error
	fault := func(bad bool, format string, a ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format+": %w", append(a, ErrInvalid)...))
		}
	}
	if l.Parent != "" {
		errs = append(errs, rtnl.CheckName(l.Parent))
	}
	if l.ParentIn != "" {
		errs = append(errs, checkPlace(l.ParentIn))
	}
	parent := l.Parent != "" || l.ParentIn != ""
	fault(parent && !l.hasParent(), "a parent of a link of kind %q", l.Kind)
	fault(l.crosses() && l.parentIn() != Host, "a parent in the container of a link outside")
	fault(l.crosses() && l.In == Host, "a parent elsewhere of a link in the host")
	if l.Mode != "" {
		_, known := l.modeValue()
		fault(!known, "mode %q of a link of kind %q", l.Mode, l.Kind)
	}
	fault(l.BCQueueLen != 0 && l.Kind != rtnl.KindMACVLAN, "a broadcast queue of a link of kind %q", l.Kind)
	fault(l.Kind == rtnl.KindIPVLAN && l.MAC != "", "MAC %q of an ipvlan, which has its parent's", l.MAC)
	fault(l.VLANID != 0 && l.Kind != rtnl.KindVLAN, "a VLAN ID of a link of kind %q", l.Kind)
	errs = append(errs, rtnl.CheckRange("VLAN ID", l.VLANID, 0, 4094), rtnl.CheckRange("VNI", l.VNI, 0, 1<<24-1))
	vxlan := l.VNI != 0 || l.Group4.IsValid()
	fault(vxlan && l.Kind != rtnl.KindVXLAN, "a VNI or group of a link of kind %q", l.Kind)
	fault(l.Group4.IsValid() && (!l.Group4.Is4() || !l.Group4.IsMulticast()), "group %q is no IPv4 multicast address", l.Group4)
	tap := l.Owner != nil || l.Group != nil || l.MultiQueue
	fault(tap && l.Kind != rtnl.KindTap, "a tap device's owner or queues of a link of kind %q", l.Kind)
	return errors.Join(errs...)
}

// rtnl.ModeValue is the kernel's number of the mode.
func (l *Link) modeValue() (uint32, bool) { return rtnl.ModeValue(l.Kind, l.Mode) }

// planParent makes sure that the link's parent is there and carries its MTU:
// an ipvlan's may be larger for the kernel, and nothing of that size gets out.
func (l *Link) planParent(ctx context.Context, s *session) error {
	if !l.hasParent() {
		return nil
	}
	if l.Parent == "" {
		return l.orphan()
	}
	if s.isNew(l.parentIn(), l.Parent) {
		return nil
	}
	parent, err := s.link(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return fmt.Errorf("parent of %s: %w", l.title(), err)
	}
	if parent.Flags&unix.IFF_LOOPBACK != 0 {
		return fmt.Errorf("%s: its parent %q is the loopback device: %w", l.title(), l.Parent, ErrInvalid)
	}
	if l.MTU > parent.MTU {
		return fmt.Errorf("%s: mtu %d is more than the %d of its parent %q: %w", l.title(), l.MTU, parent.MTU, l.Parent, ErrInvalid)
	}
	return nil
}

// orphan is the error for a link that is to be made on none: an inverse is one
// that names no parent.
func (l *Link) orphan() error {
	return fmt.Errorf("%s: a link of kind %q without a parent: %w", l.title(), l.Kind, ErrInvalid)
}

// parentBusy is the error for a parent whose frames go elsewhere: the kernel
// hands them to one of macvlans, ipvlans, a bridge, a bond.
func (l *Link) parentBusy() error {
	other := rtnl.KindMACVLAN
	if l.Kind == rtnl.KindMACVLAN {
		other = rtnl.KindIPVLAN
	}
	return fmt.Errorf("parent %q of %s is a port of a bridge or bond, or has a link of kind %q: %w", l.Parent, l.title(), other, ErrConflict)
}

// parentAttrs names the link below, and the namespace to make the link in if
// that is another one than its parent's.
func (l *Link) parentAttrs(ctx context.Context, s *session) ([]nl.NetlinkRequestData, error) {
	if !l.hasParent() {
		return nil, nil
	}
	if l.Parent == "" {
		return nil, l.orphan()
	}
	parent, err := s.indexOf(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent of %s: %w", l.title(), err)
	}
	if l.Kind == rtnl.KindVXLAN {
		return nil, nil // it is named among the kind's own data
	}
	attrs := []nl.NetlinkRequestData{nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(parent)))}
	if !l.crosses() {
		return attrs, nil
	}
	ns, err := s.namespace(l.In)
	if err != nil {
		return nil, err
	}
	return append(attrs, nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.fd)))), nil
}

// laterMAC is the MAC of a link that the kernel makes with its parent's,
// whatever is asked for. Set afterwards it is the parent's too, until the link
// is deleted (drivers/net/macvlan.c).
func (l *Link) laterMAC() string {
	if l.Kind == rtnl.KindMACVLAN && l.Mode == "passthru" {
		return l.MAC
	}
	return ""
}

// vxlanPort is the IANA's, and not what the kernel takes by default.
const vxlanPort = 4789

// addVXLAN adds a VXLAN's number, the link below, and where it asks for addresses
// that it does not know.
func (l *Link) addVXLAN(s *session, data *nl.RtAttr) {
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(l.VNI)))
	data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(s.index[linkRef{l.parentIn(), l.Parent}])))
	if l.Group4.IsValid() {
		data.AddRtAttr(nl.IFLA_VXLAN_GROUP, l.Group4.AsSlice())
	}
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, vxlanPort))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(1))
}

// addKindData adds what only links of these kinds have to IFLA_LINKINFO.
func (l *Link) addKindData(s *session, info *nl.RtAttr) {
	if !l.hasParent() {
		return
	}
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	value, hasMode := l.modeValue()
	switch {
	case l.Kind == rtnl.KindVXLAN:
		l.addVXLAN(s, data)
	case l.Kind == rtnl.KindVLAN:
		data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(l.VLANID)))
	case l.Kind == rtnl.KindIPVLAN && hasMode:
		data.AddRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(value)))
	case l.Kind == rtnl.KindMACVLAN && hasMode:
		data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(value))
	}
	if l.BCQueueLen != 0 {
		data.AddRtAttr(nl.IFLA_MACVLAN_BC_QUEUE_LEN, nl.Uint32Attr(l.BCQueueLen))
	}
}

// verifyKind compares what a link of its kind cannot change and still be it.
func (l *Link) verifyKind(ctx context.Context, s *session, have *rtnl.Link, d *differences) error {
	if have.Kind != l.Kind {
		return nil
	}
	if l.Mode != "" {
		d.compare("mode", l.Mode, have.Mode)
	}
	if l.Kind == rtnl.KindVLAN {
		d.compare("id", strconv.Itoa(l.VLANID), strconv.Itoa(have.VLANID))
	}
	if l.VNI != 0 {
		d.compare("id", strconv.Itoa(l.VNI), strconv.Itoa(have.VNI))
	}
	if l.Kind == rtnl.KindTap {
		l.verifyTap(&have.Tap, d)
	}
	if !l.hasParent() || l.Kind == rtnl.KindVXLAN || l.Parent == "" || s.unknown(l.parentIn()) {
		return nil
	}
	parent, err := s.findLink(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return err
	}
	// Indexes count per namespace: another's link may have the same.
	if parent == nil || parent.Index != have.Peer || have.PeerElsewhere != l.crosses() {
		d.add("parent "+l.Parent, "another parent")
	}
	return nil
}
