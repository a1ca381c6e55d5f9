package overlay

import (
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

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
// cannot change the VNI, the port, GBP and the address family. It does not change a device with
// another use: a multicast group, a default destination, metadata mode, or notifications of misses.
func (v *VTEP) matches(have *rtnl.Link) bool {
	x := &have.VXLAN
	foreign := x.Group.IsValid() || x.Metadata || x.Proxy || x.Resolve || x.L2Misses || x.L3Misses
	return v.isWireGuard() || have.VNI == v.VNI && uint16(x.Port) == v.port() && bool(x.GBP) == v.GBP && !foreign &&
		(!x.Local.IsValid() && v.Local.Is4() || x.Local.Is4() == v.Local.Is4() && x.Local.IsValid())
}

// isTunnel reports whether a link has the kind of the overlay's devices.
func isTunnel(l *rtnl.Link) bool { return l.Kind == rtnl.KindVXLAN || l.Kind == rtnl.KindWireGuard }

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
