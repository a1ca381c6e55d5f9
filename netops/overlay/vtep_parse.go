package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// vtepState is a VXLAN or WireGuard device as the kernel reports it. Only a VXLAN device
// has more than the link.
type vtepState struct {
	rtnl.Link
	vni    uint32
	port   uint16
	parent int
	local  netip.Addr
	// learning and gbp are flags. foreign reports whether the device has another
	// use: a multicast group, a default destination, metadata mode, or
	// notifications of misses.
	learning, gbp, unsupported bool
}

// parseVTEP reads the body of RTM_NEWLINK of a VXLAN or WireGuard device. ok is false
// for other links.
func parseVTEP(b []byte) (v vtepState, ok bool, err error) {
	l, err := rtnl.ParseLink(b)
	if err != nil || l.Kind != rtnl.KindVXLAN && l.Kind != rtnl.KindWireGuard {
		return v, false, err
	}
	v.Link = *l
	if l.Kind == rtnl.KindWireGuard {
		return v, true, nil
	}
	data, err := nlconn.Find(b[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA)
	if err == nil {
		err = nlconn.EachAttr(data, v.parseData)
	}
	return v, err == nil, err
}

func (v *vtepState) parseData(kind uint16, b []byte) error {
	switch kind {
	case nl.IFLA_VXLAN_ID:
		v.vni = uint32(nlconn.Int(b))
	case nl.IFLA_VXLAN_LINK:
		v.parent = nlconn.Int(b)
	case nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6:
		v.local, _ = netip.AddrFromSlice(b)
	case nl.IFLA_VXLAN_PORT:
		if len(b) >= 2 {
			v.port = binary.BigEndian.Uint16(b)
		}
	case nl.IFLA_VXLAN_LEARNING:
		v.learning = nlconn.Byte(b) != 0
	case nl.IFLA_VXLAN_GBP:
		v.gbp = true
	case nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6:
		v.unsupported = true
	case nl.IFLA_VXLAN_L2MISS, nl.IFLA_VXLAN_L3MISS, nl.IFLA_VXLAN_FLOWBASED, nl.IFLA_VXLAN_PROXY, nl.IFLA_VXLAN_RSC:
		v.unsupported = v.unsupported || nlconn.Byte(b) != 0
	}
	return nil
}

func (v *VTEP) isWireGuard() bool { return v.WireGuard.PrivateKey != Secret{} }

func (v *VTEP) kind() string {
	if v.isWireGuard() {
		return rtnl.KindWireGuard
	}
	return rtnl.KindVXLAN
}

func (v *VTEP) port() uint16 {
	if v.Port == 0 {
		return linuxVXLANPort
	}
	return v.Port
}

// matches reports whether the kernel can change the existing device to match v. It
// cannot change the VNI, the port, GBP and the address family.
func (v *VTEP) matches(have *vtepState) bool {
	return v.isWireGuard() || have.vni == v.VNI && have.port == v.port() && have.gbp == v.GBP && !have.unsupported &&
		(!have.local.IsValid() && v.Local.Is4() || have.local.Is4() == v.Local.Is4() && have.local.IsValid())
}

// validate checks values that the kernel would accept without an error.
func (v *VTEP) validate(is6 bool) error {
	errs := []error{rtnl.CheckName(v.Name), rtnl.CheckMTU(v.MTU)}
	if v.isWireGuard() {
		if v.Port == 0 || !v.Network.IsValid() {
			errs = append(errs, fmt.Errorf("port %d, network %q: %w: a WireGuard device needs both", v.Port, v.Network, nlconn.ErrInvalid))
		}
	} else {
		errs = append(errs, v.validateVXLAN(is6)...)
	}
	if a := v.Address; !a.IsValid() || a.Addr().Is6() != is6 || !a.IsSingleIP() {
		errs = append(errs, fmt.Errorf("device address %q: %w: it is one address", v.Address, nlconn.ErrInvalid))
	}
	if v.Network.IsValid() && v.Network.Addr().Is6() != is6 {
		errs = append(errs, fmt.Errorf("pod network %q: %w: it is of another address family", v.Network, nlconn.ErrInvalid))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tunnel device: %w", err)
	}
	return nil
}

func (v *VTEP) validateVXLAN(is6 bool) []error {
	errs := []error{rtnl.CheckName(v.Parent), rtnl.CheckMAC(v.MAC)}
	if v.VNI == 0 || v.VNI >= 1<<24 {
		errs = append(errs, fmt.Errorf("VNI %d: %w: it is 1 to %d", v.VNI, nlconn.ErrInvalid, 1<<24-1))
	}
	if !v.Local.IsValid() || v.Local.Is6() != is6 || v.Local.IsUnspecified() || v.Local.IsMulticast() {
		errs = append(errs, fmt.Errorf("local address %q: %w", v.Local, nlconn.ErrInvalid))
	}
	return errs
}
