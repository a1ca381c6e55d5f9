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

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Kinds of links that stand alone or on a parent, as the kernel names them.
const (
	kindMACVLAN = "macvlan"
	kindIPVLAN  = "ipvlan"
	kindVLAN    = "vlan"
	kindDummy   = "dummy"
	kindBridge  = "bridge"
	kindVRF     = "vrf"
	kindIFB     = "ifb"
	// kindTap is the kernel's name for what /dev/net/tun makes: taps and tuns.
	kindTap = "tun"
)

// A mode is a name of iproute2 and the number of the kernel (if_link.h).
type mode struct {
	name  string
	value uint32
}

// modesOf lists the modes of a kind; none for most.
func modesOf(kind string) []mode {
	switch kind {
	case kindMACVLAN:
		return []mode{
			{"private", nl.MACVLAN_MODE_PRIVATE},
			{"vepa", nl.MACVLAN_MODE_VEPA},
			{"bridge", nl.MACVLAN_MODE_BRIDGE},
			{"passthru", nl.MACVLAN_MODE_PASSTHRU},
		}
	case kindIPVLAN:
		return []mode{{"l2", 0}, {"l3", 1}, {"l3s", 2}} // IPVLAN_MODE_*
	}
	return nil
}

// hasParent tells whether the link stands on another one.
func (l *Link) hasParent() bool {
	return l.Kind == kindMACVLAN || l.Kind == kindIPVLAN || l.Kind == kindVLAN || l.Kind == kindVXLAN
}

// hasParentHere tells whether the link stands on one in its own namespace.
func (l *linkState) hasParentHere() bool {
	return (&Link{Kind: l.kind}).hasParent() && l.peer != 0 && !l.peerElsewhere
}

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
	return l.hasParent() || l.Kind == kindDummy || l.Kind == kindTap || l.Kind == kindIFB || l.Shared && l.Kind == kindBridge
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
	if l.Kind == kindTap {
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
		errs = append(errs, checkName(l.Parent))
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
	fault(l.BCQueueLen != 0 && l.Kind != kindMACVLAN, "a broadcast queue of a link of kind %q", l.Kind)
	fault(l.Kind == kindIPVLAN && l.MAC != "", "MAC %q of an ipvlan, which has its parent's", l.MAC)
	fault(l.VLANID != 0 && l.Kind != kindVLAN, "a VLAN ID of a link of kind %q", l.Kind)
	errs = append(errs, checkRange("VLAN ID", l.VLANID, 0, 4094), checkRange("VNI", l.VNI, 0, 1<<24-1))
	vxlan := l.VNI != 0 || l.Group4.IsValid()
	fault(vxlan && l.Kind != kindVXLAN, "a VNI or group of a link of kind %q", l.Kind)
	fault(l.Group4.IsValid() && (!l.Group4.Is4() || !l.Group4.IsMulticast()), "group %q is no IPv4 multicast address", l.Group4)
	tap := l.Owner != nil || l.Group != nil || l.MultiQueue
	fault(tap && l.Kind != kindTap, "a tap device's owner or queues of a link of kind %q", l.Kind)
	return errors.Join(errs...)
}

// modeValue is the kernel's number of the mode.
func (l *Link) modeValue() (uint32, bool) {
	for _, m := range modesOf(l.Kind) {
		if m.name == l.Mode {
			return m.value, true
		}
	}
	return 0, false
}

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
	if parent.flags&unix.IFF_LOOPBACK != 0 {
		return fmt.Errorf("%s: its parent %q is the loopback device: %w", l.title(), l.Parent, ErrInvalid)
	}
	if l.MTU > parent.mtu {
		return fmt.Errorf("%s: mtu %d is more than the %d of its parent %q: %w", l.title(), l.MTU, parent.mtu, l.Parent, ErrInvalid)
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
	other := kindMACVLAN
	if l.Kind == kindMACVLAN {
		other = kindIPVLAN
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
	if l.Kind == kindVXLAN {
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
	if l.Kind == kindMACVLAN && l.Mode == "passthru" {
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
	case l.Kind == kindVXLAN:
		l.addVXLAN(s, data)
	case l.Kind == kindVLAN:
		data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(l.VLANID)))
	case l.Kind == kindIPVLAN && hasMode:
		data.AddRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(value)))
	case l.Kind == kindMACVLAN && hasMode:
		data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(value))
	}
	if l.BCQueueLen != 0 {
		data.AddRtAttr(nl.IFLA_MACVLAN_BC_QUEUE_LEN, nl.Uint32Attr(l.BCQueueLen))
	}
}

// kindState is what only links of these kinds have, as the kernel tells it.
type kindState struct {
	mode       string
	bcQueueLen uint32
	vlanID     int
	vni        int
	table      int // a VRF's
	tap        tapState
}

// parseKind reads the IFLA_INFO_DATA of a link.
func (l *linkState) parseKind(data []byte) error {
	return nlconn.EachAttr(data, func(kind uint16, v []byte) error {
		switch {
		case l.kind == kindMACVLAN && kind == nl.IFLA_MACVLAN_MODE:
			l.mode = modeName(l.kind, nlconn.Int(v))
		case l.kind == kindMACVLAN && kind == nl.IFLA_MACVLAN_BC_QUEUE_LEN:
			l.bcQueueLen = uint32(nlconn.Int(v))
		case l.kind == kindIPVLAN && kind == nl.IFLA_IPVLAN_MODE:
			l.mode = modeName(l.kind, nlconn.Short(v))
		case l.kind == kindVLAN && kind == nl.IFLA_VLAN_ID:
			l.vlanID = nlconn.Short(v)
		case l.kind == kindVXLAN && kind == nl.IFLA_VXLAN_ID:
			l.vni = nlconn.Int(v)
		case l.kind == kindVRF && kind == nl.IFLA_VRF_TABLE:
			l.table = nlconn.Int(v)
		case l.kind == kindTap:
			l.tap.parse(kind, v)
		}
		return nil
	})
}

func modeName(kind string, value int) string {
	for _, m := range modesOf(kind) {
		if int(m.value) == value {
			return m.name
		}
	}
	return strconv.Itoa(value)
}

// verifyKind compares what a link of its kind cannot change and still be it.
func (l *Link) verifyKind(ctx context.Context, s *session, have *linkState, d *differences) error {
	if have.kind != l.Kind {
		return nil
	}
	if l.Mode != "" {
		d.compare("mode", l.Mode, have.mode)
	}
	if l.Kind == kindVLAN {
		d.compare("id", strconv.Itoa(l.VLANID), strconv.Itoa(have.vlanID))
	}
	if l.VNI != 0 {
		d.compare("id", strconv.Itoa(l.VNI), strconv.Itoa(have.vni))
	}
	if l.Kind == kindTap {
		l.verifyTap(&have.tap, d)
	}
	if !l.hasParent() || l.Kind == kindVXLAN || l.Parent == "" || s.unknown(l.parentIn()) {
		return nil
	}
	parent, err := s.findLink(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return err
	}
	// Indexes count per namespace: another's link may have the same.
	if parent == nil || parent.index != have.peer || have.peerElsewhere != l.crosses() {
		d.add("parent "+l.Parent, "another parent")
	}
	return nil
}
