package sriov

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// function is the VF that a configuration selects.
type function struct {
	// Address is its PCI address, and Path its directory below /sys/devices.
	Address, Path string
	// PF is the interface of its physical function, and Number its number there.
	PF     string
	Number int
	// Userspace reports that the VF has a userspace driver such as vfio-pci, so
	// that it has no interface.
	Userspace bool
	// Link, Alias, MAC and MTU are those of its interface on the host. With
	// Userspace, MAC is the administrative one, or "", and MTU the PF's.
	Link, Alias, MAC string
	MTU              int
}

// device is what the attachment claims.
func (f *function) device() attach.Device {
	return attach.Device{Link: f.Link, Alias: f.Alias, Path: f.Path, Whole: true}
}

// find reads the VF and its physical function, and the VF's hardware. It reads no
// interface of the VF, which a container may have.
func (c *Conf) find(ctx context.Context, n *netops.Net) (function, sysfs.Function, error) {
	if c.DeviceID == "" {
		return function{}, sysfs.Function{}, &roles.ConfError{Path: "deviceID", Reason: "is missing: give the PCI address of a virtual function, or have a device plugin give it"}
	}
	f := function{Address: strings.ToLower(c.DeviceID)}
	hw, err := sysfs.FunctionOn(f.Address)
	if errors.Is(err, netops.ErrInvalid) {
		return f, hw, &roles.ConfError{Path: "deviceID", Reason: fmt.Sprintf(
			"%q is not a virtual function: use an address that `ls -l /sys/class/net/PF/device/virtfn*` prints", c.DeviceID)}
	}
	if err != nil {
		return f, hw, fmt.Errorf("deviceID: %w", err)
	}
	f.Path, f.Number, f.Userspace = hw.Path, hw.Number, hw.IsUserspace()
	err = fmt.Errorf("network interface of the physical function %q: %w on the host", hw.Physical.Path, netops.ErrNotExist)
	for _, name := range hw.Physical.Links { // in switchdev mode some have no VFs
		var vf *netops.VF
		vf, err = n.VF(ctx, name, hw.Number)
		if err == nil {
			f.PF = name
			if f.Userspace {
				f.MAC = roles.UnicastMAC(vf.MAC)
			}
			return f, hw, nil
		}
		if !errors.Is(err, netops.ErrNotExist) {
			break
		}
	}
	return f, hw, fmt.Errorf("deviceID: %w", err)
}

// available reads the VF with the interface that ADD moves.
func (c *Conf) available(ctx context.Context, n *netops.Net) (function, error) {
	f, hw, err := c.find(ctx, n)
	if err != nil {
		return f, err
	}
	name := f.PF
	if !f.Userspace {
		if len(hw.Links) == 0 {
			return f, fmt.Errorf("deviceID: network interface of %q: %w on the host, and its driver %q is not for userspace programs", hw.Path, netops.ErrNotExist, hw.Driver)
		}
		name = hw.Links[0]
	}
	l, err := n.Link(ctx, nil, name)
	if err != nil {
		return f, fmt.Errorf("deviceID: %w", err)
	}
	f.MTU = l.MTU
	if !f.Userspace {
		f.Link, f.Alias, f.MAC = l.Name, l.Alias, l.MAC
	}
	return f, nil
}
