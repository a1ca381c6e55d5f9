package netops

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// hasParent reports whether the link needs a parent link.
func (l *Link) hasParent() bool { return rtnl.HasParent(l.Kind) }

// parentIn returns the place of the parent link.
func (l *Link) parentIn() Place {
	if l.ParentIn == "" {
		return l.In
	}
	return l.ParentIn
}

// crossesNamespaces reports whether the link and its parent are in different namespaces.
func (l *Link) crossesNamespaces() bool { return l.hasParent() && l.parentIn() != l.In }

// choosesIndex reports whether the link is made with chosenIndex. For other links the
// kernel chooses the index. The overlay's device gets another index whenever it is made anew,
// so that notifications about its predecessor do not count.
func (l *Link) choosesIndex() bool {
	return l.hasParent() && l.VXLAN == nil || l.Kind == rtnl.KindDummy || l.Kind == rtnl.KindTap || l.Kind == rtnl.KindIFB || l.Kind == rtnl.KindBond || l.Shared && l.Kind == rtnl.KindBridge
}

// chosenIndex returns the interface index that the link is made with. It is a hash of the
// link's label and name, at least 1<<24, far above the indexes that the kernel chooses.
// It has four purposes:
//
//   - Up to kernel 6.14, a request that makes a link looks for the name in the namespace
//     that it is sent in. It fails if the host has an interface with the name of the
//     container's. A request with an index looks for the index instead.
//   - The request that labels the link addresses it by the index. It cannot label another
//     program's link.
//   - Therefore both requests can be in one write, which a signal cannot interrupt. A
//     bridge without a label would stay for ever if its record is lost.
//   - If the process still dies between the two requests, the index identifies the link.
func (l *Link) chosenIndex() int {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", ownLabel(l.Alias), l.Name)
	return 1<<24 | int(h.Sum32()>>8)
}

// kindWords adds the properties that only some kinds have, in the form of ip-link(8).
func (l *Link) kindWords(w *words) {
	w.value("mode", l.Mode)
	w.number("bcqueuelen", int(l.BCQueueLen))
	w.number("id", l.VLANID+l.VNI)
	if l.Group4.IsValid() {
		w.value("group", l.Group4.String())
	}
	if x := l.VXLAN; x != nil {
		w.value("local", x.Local.String())
		w.number("dstport", int(x.Port))
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
	if l.Bond != nil {
		*w = append(*w, bondWords(l.Bond)...)
	}
}

// isPlain reports whether the link has no property that only some kinds have. Most links
// are plain. For them, validateKind skips its checks to save time.
func (l *Link) isPlain() bool {
	return l.Kind != rtnl.KindNetkit && l.Parent == "" && l.ParentIn == "" && l.Mode == "" && l.BCQueueLen == 0 && l.VLANID == 0 && l.VNI == 0 && !l.Group4.IsValid() &&
		l.Owner == nil && l.Group == nil && !l.MultiQueue && l.Bond == nil
}

// validateKind checks the properties that only some kinds have.
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
	fault(l.crossesNamespaces() && l.parentIn() != Host, "a parent in the container of a link outside")
	fault(l.crossesNamespaces() && l.In == Host, "a parent elsewhere of a link in the host")
	if l.Mode != "" {
		_, known := rtnl.ModeValue(l.Kind, l.Mode)
		fault(!known, "mode %q of a link of kind %q", l.Mode, l.Kind)
	}
	fault(l.BCQueueLen != 0 && l.Kind != rtnl.KindMACVLAN, "a broadcast queue of a link of kind %q", l.Kind)
	fault(l.Kind == rtnl.KindIPVLAN && l.MAC != "", "MAC %q of an ipvlan, which has its parent's", l.MAC)
	hasMAC := l.MAC != "" || l.Peer != nil && l.Peer.MAC != ""
	fault(l.Kind == rtnl.KindNetkit && l.Mode != "l2" && hasMAC, "a MAC of a netkit pair in mode %q, which has none", l.Mode)
	fault(l.VLANID != 0 && l.Kind != rtnl.KindVLAN, "a VLAN ID of a link of kind %q", l.Kind)
	errs = append(errs, rtnl.CheckRange("VLAN ID", l.VLANID, 0, 4094), rtnl.CheckRange("VNI", l.VNI, 0, 1<<24-1))
	vxlan := l.VNI != 0 || l.Group4.IsValid()
	fault(vxlan && l.Kind != rtnl.KindVXLAN, "a VNI or group of a link of kind %q", l.Kind)
	fault(l.Group4.IsValid() && (!l.Group4.Is4() || !l.Group4.IsMulticast()), "group %q is no IPv4 multicast address", l.Group4)
	tap := l.Owner != nil || l.Group != nil || l.MultiQueue
	fault(tap && l.Kind != rtnl.KindTap, "a tap device's owner or queues of a link of kind %q", l.Kind)
	errs = append(errs, l.validateBond())
	return errors.Join(errs...)
}

// planParent checks that the link's parent exists and that its MTU is large enough. The
// kernel accepts an ipvlan with a larger MTU than its parent, but then drops packets of
// that size.
func (l *Link) planParent(ctx context.Context, s *session) error {
	if !l.hasParent() {
		return nil
	}
	if l.Parent == "" {
		return l.missingParentError()
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

// missingParentError returns the error for making a link that needs a parent and names none. Only
// the inverse of such a link may name no parent.
func (l *Link) missingParentError() error {
	return fmt.Errorf("%s: a link of kind %q without a parent: %w", l.title(), l.Kind, ErrInvalid)
}

// parentBusyError returns the error for a parent whose frames another link receives. The
// kernel passes the frames of a parent either to macvlans, or to ipvlans, or to a bridge,
// or to a bond.
func (l *Link) parentBusyError() error {
	other := rtnl.KindMACVLAN
	if l.Kind == rtnl.KindMACVLAN {
		other = rtnl.KindIPVLAN
	}
	return fmt.Errorf("parent %q of %s is a port of a bridge or bond, or has a link of kind %q: %w", l.Parent, l.title(), other, ErrConflict)
}

// addParent appends the parent link. If the link is made in another namespace than its
// parent, it also appends that namespace.
func (l *Link) addParent(ctx context.Context, s *session, b *nlconn.Body) error {
	if !l.hasParent() {
		return nil
	}
	if l.Parent == "" {
		return l.missingParentError()
	}
	parent, err := s.indexOf(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return fmt.Errorf("parent of %s: %w", l.title(), err)
	}
	if l.Kind == rtnl.KindVXLAN {
		return nil // kindState has the parent
	}
	b.Uint32(unix.IFLA_LINK, uint32(parent))
	if !l.crossesNamespaces() {
		return nil
	}
	ns, err := s.namespace(l.In)
	if err != nil {
		return err
	}
	b.Uint32(unix.IFLA_NET_NS_FD, uint32(ns.fd))
	return nil
}

// laterMAC returns the MAC that must be set after the link is made, or "". The kernel
// makes a macvlan in passthru mode with its parent's MAC and ignores the requested MAC.
// A MAC that is set later is also the parent's MAC until the link is deleted
// (drivers/net/macvlan.c).
func (l *Link) laterMAC() string {
	if l.Kind == rtnl.KindMACVLAN && l.Mode == "passthru" {
		return l.MAC
	}
	return ""
}

// ianaVXLANPort is the UDP port that IANA assigned. The kernel's default is 8472.
const ianaVXLANPort = 4789

// kindState returns the kind and the properties that only some kinds have.
func (l *Link) kindState(s *session) *rtnl.Link {
	k := &rtnl.Link{Kind: l.Kind, KindState: rtnl.KindState{
		Mode: l.Mode, BCQueueLen: l.BCQueueLen, VLANID: uint16(l.VLANID), VNI: uint32(l.VNI),
		VLANFiltering: l.Bridge != nil && l.Bridge.VLANFiltering, Filter4: l.Bridge != nil && l.Bridge.Filter, Filter6: l.Bridge != nil && l.Bridge.Filter,
	}}
	if l.Bond != nil {
		k.Bond = *l.Bond
	}
	if l.Kind == rtnl.KindVXLAN { // the group receives frames to unknown addresses
		k.Peer = s.index[linkRef{l.parentIn(), l.Parent}]
		k.VXLAN = rtnl.VXLAN{Group: l.Group4, Port: ianaVXLANPort, Learning: true}
		if l.VXLAN != nil {
			k.VXLAN = *l.VXLAN
		}
	}
	return k
}

// verifyKind compares the properties that a link of this kind must not change.
func (l *Link) verifyKind(ctx context.Context, s *session, have *rtnl.Link, d *differences) error {
	if have.Kind != l.Kind {
		return nil
	}
	if l.Mode != "" {
		d.compare("mode", l.Mode, have.Mode)
	}
	if l.Kind == rtnl.KindVLAN {
		d.compare("id", strconv.Itoa(l.VLANID), strconv.Itoa(int(have.VLANID)))
	}
	if l.VNI != 0 {
		d.compare("id", strconv.Itoa(l.VNI), strconv.Itoa(int(have.VNI)))
	}
	if l.Kind == rtnl.KindTap {
		l.verifyTap(&have.Tap, d)
	}
	if l.Bond != nil {
		verifyBond(l.Bond, &have.Bond, d)
	}
	if !l.hasParent() || l.Kind == rtnl.KindVXLAN || l.Parent == "" || s.isAbsentPlace(l.parentIn()) {
		return nil
	}
	parent, err := s.findLink(ctx, l.parentIn(), l.Parent)
	if err != nil {
		return err
	}
	// Interface indexes are per namespace, so links in two namespaces can have the same
	// index.
	if parent == nil || parent.Index != have.Peer || have.PeerElsewhere != l.crossesNamespaces() {
		d.add("parent "+l.Parent, "another parent")
	}
	return nil
}

// tunDevice creates taps (Documentation/networking/tuntap.rst).
const tunDevice = "/dev/net/tun"

// addTap creates a tap device and makes it persistent as the last step. Until
// then the kernel deletes the device when its file is closed. Therefore a killed
// process or a refused request leaves no unlabelled device.
func (l *Link) addTap(ctx context.Context, w *requestWriter, c Change) error {
	ns, err := w.namespace(l.In)
	if err != nil {
		return describeStep(c.Do, err)
	}
	var f *os.File
	err = ns.visit(func() error {
		var err error
		f, err = l.openTap()
		return err
	})
	if errors.Is(err, unix.EBUSY) {
		return l.takenError(ctx, w.session)
	}
	if err != nil {
		return describeStep(c.Do, err)
	}
	defer f.Close() //nolint:errcheck // the kernel has the settings already
	if err := l.setUpTap(ctx, w.session, f); err != nil {
		return describeStep(c.Do, err)
	}
	w.done = append(w.done, c)
	return nil
}

// openTap creates the device in the calling thread's namespace. With
// IFF_TUN_EXCL an existing device is an EBUSY error and is not opened. Packets
// that are read have a virtio header and no packet information. A later open can
// choose other flags.
func (l *Link) openTap() (*os.File, error) {
	f, err := os.OpenFile(tunDevice, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%w: there is no %s: load the kernel module tun, and let this process see the device", ErrNotSupported, tunDevice)
	}
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(l.Name)
	if err == nil {
		flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
		if l.MultiQueue {
			flags |= unix.IFF_MULTI_QUEUE
		}
		request.SetUint16(flags)
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.TUNSETIFINDEX, l.chosenIndex())
	}
	if err == nil {
		err = unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// setUpTap configures the device and makes it persistent.
func (l *Link) setUpTap(ctx context.Context, s *session, f *os.File) error {
	m, err := l.setAt(ctx, s, l.chosenIndex())
	if err != nil {
		return err
	}
	c, err := s.conn(l.In)
	if err != nil {
		return err
	}
	if err := c.One(ctx, m); err != nil {
		return err
	}
	for _, id := range []struct {
		request uint
		value   *uint32
	}{{unix.TUNSETOWNER, l.Owner}, {unix.TUNSETGROUP, l.Group}} {
		if id.value == nil {
			continue
		}
		if err := unix.IoctlSetInt(int(f.Fd()), id.request, int(*id.value)); err != nil {
			return err
		}
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1)
}

func (l *Link) verifyTap(have *rtnl.Tap, d *differences) {
	if !have.IsTap {
		d.add("mode tap", "mode tun")
	}
	if l.Owner != nil {
		d.compare("user", idText(l.Owner), idText(have.Owner))
	}
	if l.Group != nil {
		d.compare("group", idText(l.Group), idText(have.Group))
	}
	if l.MultiQueue && !have.MultiQueue {
		d.add("multi_queue on", "multi_queue off")
	}
}

func idText(id *uint32) string {
	if id == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*id), 10)
}
