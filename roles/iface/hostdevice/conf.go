// Package hostdevice is the CNI role "host-device": it moves a device of the
// host into the container. It has the keys of the reference plugin.
package hostdevice

import (
	"net"
	"path"
	"strings"

	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the host-device role.
// runtimeConfig.deviceID replaces pciBusID. If the PCI device or the auxiliary
// device has a userspace driver, it is selected. Otherwise the first key that
// is set selects the device: device, hwaddr, kernelpath, then pciBusID.
type Conf struct {
	roles.NetConf
	// Device is the device's name on the host. Of device, hwaddr, kernelpath
	// and pciBusID the first that is set selects the device.
	Device string `json:"device,omitempty"`
	// HWAddr is the device's hardware (MAC) address.
	HWAddr string `json:"hwaddr,omitempty"`
	// KernelPath is the device's directory below /sys/devices. If it has
	// several interfaces, the first by name is used.
	KernelPath string `json:"kernelpath,omitempty"`
	// PCIBusID is the device's PCI address, such as "0000:03:00.1". A device
	// with the driver vfio-pci, uio_pci_generic or igb_uio has no interface to
	// move: only the result contains it.
	PCIBusID string `json:"pciBusID,omitempty"`
	// UseInterfaceNetwork copies the device's addresses, routes and policy rules
	// from the host into the container, beside those of ipam. DEL gives the host
	// the addresses without a lifetime and the routes back. IPv6 addresses with a
	// lifetime are not copied.
	UseInterfaceNetwork bool `json:"useInterfaceNetwork,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// DeviceID is a PCI address or a name on the auxiliary bus. It replaces
		// pciBusID.
		DeviceID string `json:"deviceID,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

// Validate reports every invalid key with its JSON path. Only ADD reports that
// no device is selected: GC and STATUS do not get the device ID.
func (c *Conf) Validate() error {
	var f roles.Faults
	f.CheckLink("device", c.Device)
	if _, err := net.ParseMAC(c.HWAddr); c.HWAddr != "" && err != nil {
		f.Addf("hwaddr", "%q is not a hardware address: use the form 02:00:00:00:00:01", c.HWAddr)
	}
	if c.KernelPath != "" && !strings.HasPrefix(path.Clean(c.KernelPath), "/sys/devices/") {
		f.Addf("kernelpath", "%q is not below /sys/devices/: use what `readlink -f /sys/class/net/NAME/device` prints", c.KernelPath)
	}
	if c.PCIBusID != "" && !sysfs.IsPCIAddress(c.PCIBusID) {
		f.Addf("pciBusID", "%q is not a PCI address: use the form 0000:03:00.1", c.PCIBusID)
	}
	if id := c.RuntimeConfig.DeviceID; id != "" && !sysfs.IsPCIAddress(id) && !isAuxiliaryName(id) {
		f.Addf("runtimeConfig.deviceID", "%q is neither a PCI address, such as 0000:03:00.1, nor a name on the auxiliary bus, such as mlx5_core.sf.4", id)
	}
	return f.Err()
}

// isAuxiliaryName reports whether s is module.device.number (kernel:
// Documentation/driver-api/auxiliary_bus.rst).
func isAuxiliaryName(s string) bool {
	parts := strings.Split(s, ".")
	if len(parts) != 3 || len(s) > 255 {
		return false
	}
	for _, p := range parts {
		if p == "" || strings.ContainsFunc(p, func(r rune) bool {
			return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			return false
		}
	}
	return strings.Trim(parts[2], "0123456789") == ""
}
