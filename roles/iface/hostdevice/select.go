package hostdevice

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// busAuxiliary is a bus of a device ID, besides sysfs.PCI.
const busAuxiliary = "auxiliary"

// selected is the device that a configuration selects.
type selected struct {
	// Userspace reports that the device has a userspace driver such as
	// vfio-pci, so that it has no interface.
	Userspace bool
	// Link, MAC and Alias are the interface's values on the host.
	Link, MAC, Alias string
	MTU              int
	// Path is the device's directory below /sys/devices, or "" for a virtual
	// device.
	Path string
	// Sole reports that the hardware has no other interface.
	Sole bool
	// Network is the interface's on the host, with useInterfaceNetwork.
	Network network
}

// find reads the device from the kernel. The error wraps netops.ErrNotExist if
// the device does not exist or is not on the host.
func (c *Conf) find(ctx context.Context, n *netops.Net) (selected, error) {
	hw, key, err := c.hardware()
	if err != nil {
		return selected{}, fmt.Errorf("%s: %w", key, err)
	}
	if hw.IsUserspace() {
		return selected{Userspace: true, Path: hw.Path}, nil
	}
	var l netops.LinkInfo
	switch {
	case c.Device != "":
		key = "device"
		l, err = n.Link(ctx, nil, c.Device)
	case c.HWAddr != "":
		key = "hwaddr"
		l, err = c.byAddress(ctx, n)
	case c.KernelPath != "":
		key = "kernelpath"
		if hw, err = sysfs.At(c.KernelPath); err == nil {
			l, err = firstLink(ctx, n, hw)
		}
	case key != "":
		l, err = firstLink(ctx, n, hw)
	default:
		return selected{}, &roles.ConfError{Path: "device", Reason: "is missing: give device, hwaddr, kernelpath or pciBusID, or have the runtime give runtimeConfig.deviceID"}
	}
	if err != nil {
		return selected{}, fmt.Errorf("%s: %w", key, err)
	}
	return withHardware(l)
}

// withHardware adds to an interface what sysfs has about its hardware.
func withHardware(l netops.LinkInfo) (selected, error) {
	d, err := attach.DeviceOf(l)
	return selected{Link: l.Name, MAC: l.MAC, Alias: l.Alias, MTU: l.MTU, Path: d.Path, Sole: d.Whole}, err
}

// pciID is the device's PCI address, or "" if it is not on the PCI bus.
func (s *selected) pciID() string {
	if id := path.Base(s.Path); sysfs.IsPCIAddress(id) {
		return id
	}
	return ""
}

// hardware is the device that pciBusID or the device ID names, and the key that
// names it. Both are zero if neither key is set.
func (c *Conf) hardware() (hw sysfs.Device, key string, err error) {
	id := c.RuntimeConfig.DeviceID
	if id == "" && c.PCIBusID == "" {
		return hw, "", nil
	}
	key = "runtimeConfig.deviceID"
	if id == "" {
		id, key = c.PCIBusID, "pciBusID"
	}
	if sysfs.IsPCIAddress(id) {
		hw, err = sysfs.On(sysfs.PCI, strings.ToLower(id))
	} else {
		hw, err = sysfs.On(busAuxiliary, id)
	}
	return hw, key, err
}

// byAddress finds the interface with the configured MAC address. A VLAN, a
// bridge or a bond has the MAC of its lower device, so a hardware device is
// preferred.
func (c *Conf) byAddress(ctx context.Context, n *netops.Net) (netops.LinkInfo, error) {
	mac, err := net.ParseMAC(c.HWAddr)
	if err != nil {
		return netops.LinkInfo{}, err
	}
	links, err := n.Links(ctx, nil)
	if err != nil {
		return netops.LinkInfo{}, err
	}
	links = slices.DeleteFunc(links, func(l netops.LinkInfo) bool { return l.MAC != mac.String() })
	if slices.ContainsFunc(links, isHardware) {
		links = slices.DeleteFunc(links, func(l netops.LinkInfo) bool { return !isHardware(l) })
	}
	switch len(links) {
	case 0:
		return netops.LinkInfo{}, fmt.Errorf("interface with the address %s: %w", mac, netops.ErrNotExist)
	case 1:
		return links[0], nil
	}
	sorting.Func(links, func(a, b netops.LinkInfo) int { return cmp.Compare(a.Name, b.Name) })
	return netops.LinkInfo{}, fmt.Errorf("%q and %q both have the address %s: select by device", links[0].Name, links[1].Name, mac)
}

func isHardware(l netops.LinkInfo) bool { return l.Kind == "" }

// firstLink is the hardware's first interface by name.
func firstLink(ctx context.Context, n *netops.Net, hw sysfs.Device) (netops.LinkInfo, error) {
	if len(hw.Links) == 0 {
		return netops.LinkInfo{}, fmt.Errorf("network interface of %q: %w on the host", hw.Path, netops.ErrNotExist)
	}
	return n.Link(ctx, nil, hw.Links[0])
}

// selects reports whether the configuration selects a device.
func (c *Conf) selects() bool {
	return c.Device != "" || c.HWAddr != "" || c.KernelPath != "" || c.PCIBusID != "" || c.RuntimeConfig.DeviceID != ""
}
