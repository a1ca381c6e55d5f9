// Package sysfs reads hardware devices from the kernel's device tree.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// root is the mount point of the kernel's device tree (kernel: Documentation/filesystems/sysfs.rst).
const root = "/sys"

// Device is a hardware device in sysfs. Links contains only links in the network
// namespace that sysfs was mounted for.
type Device struct {
	// Path is the device's own directory, below /sys/devices.
	Path string
	// Driver is the name of the bound driver, "" for none.
	Driver string
	// Links are the names of its network interfaces, sorted. The interfaces of a
	// virtio device are one directory level below the device.
	Links []string
}

// At reads the device whose directory is path. The path must be below
// /sys/devices and contain no symbolic link. For a virtio device it returns the parent
// device. The error wraps netops.ErrInvalid for any other path and netops.ErrNotExist if the device
// does not exist.
func At(path string) (Device, error) {
	clean := filepath.Clean(path)
	real, err := resolveDevice(clean)
	if err != nil {
		return Device{}, err
	}
	if real != clean {
		return Device{}, fmt.Errorf("device %q: %w: is a symbolic link to %q", path, nlconn.ErrInvalid, real)
	}
	return readDevice(withoutVirtio(real))
}

// userspaceDrivers give their devices to programs outside the kernel, such as those that use DPDK. The devices have no
// network interface then.
func userspaceDrivers() []string { return []string{"vfio-pci", "uio_pci_generic", "igb_uio"} }

// IsUserspace reports whether the driver gives the device to a program outside the kernel.
func (d *Device) IsUserspace() bool { return slices.Contains(userspaceDrivers(), d.Driver) }

// On reads a device by its name on a bus ("pci", "auxiliary"). The error
// wraps netops.ErrNotExist if the device does not exist.
func On(bus, id string) (Device, error) {
	path := filepath.Join(root, "bus", bus, "devices", id)
	if filepath.Base(path) != id || filepath.Base(filepath.Dir(filepath.Dir(path))) != bus {
		return Device{}, fmt.Errorf("%s device %q: %w", bus, id, nlconn.ErrInvalid)
	}
	real, err := resolveDevice(path)
	if err != nil {
		return Device{}, err
	}
	return readDevice(real)
}

// PCI is the name of the PCI bus.
const PCI = "pci"

// IsPCIAddress reports whether s is domain:bus:device.function as in sysfs:
// hexadecimal, with a function of one digit from 0 to 7 (kernel: PCI_FUNC, and
// the format "%04x:%02x:%02x.%d").
func IsPCIAddress(s string) bool {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 || len(parts[0]) < 4 || len(parts[0]) > 8 || strings.Join(parts[:3], ":")+"."+parts[3] != s {
		return false
	}
	for _, p := range parts[:3] {
		if strings.Trim(p, "0123456789abcdefABCDEF") != "" {
			return false
		}
	}
	return len(parts[1]) == 2 && len(parts[2]) == 2 && len(parts[3]) == 1 && strings.Contains("01234567", parts[3])
}

// Function is a virtual function (VF) of a PCI device that supports SR-IOV.
type Function struct {
	Device
	// Physical is the device that the function is of (PF).
	Physical Device
	// Number is the function's number at the PF.
	Number int
}

// maxFunctions is more than the number of VFs that a PCI device can have (a field of 16 bits).
const maxFunctions = 1 << 16

// FunctionOn reads the virtual function with a PCI address. The error wraps netops.ErrNotExist if no device has the address, and
// netops.ErrInvalid if the device is not a virtual function.
func FunctionOn(address string) (Function, error) {
	own, err := On(PCI, address)
	if err != nil {
		return Function{}, err
	}
	f := Function{Device: own}
	path, err := resolveDevice(filepath.Join(own.Path, "physfn"))
	if errors.Is(err, nlconn.ErrNotExist) {
		return f, fmt.Errorf("device %q: %w: it is not a virtual function of another device", address, nlconn.ErrInvalid)
	}
	if err != nil {
		return f, err
	}
	f.Physical, err = readDevice(path)
	if err != nil {
		return f, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return f, fmt.Errorf("device %q: %w", path, err)
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "virtfn")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 || n >= maxFunctions {
			continue
		}
		if to, err := os.Readlink(filepath.Join(path, e.Name())); err == nil && filepath.Base(to) == filepath.Base(own.Path) {
			f.Number = n
			return f, nil
		}
	}
	return f, fmt.Errorf("device %q: %w among the virtual functions of %q", address, nlconn.ErrNotExist, path)
}

// Of returns the directory of a host link's device, below /sys/devices. It is ""
// for a virtual link.
func Of(link string) (string, error) {
	if err := rtnl.CheckName(link); err != nil {
		return "", err
	}
	real, err := resolveDevice(filepath.Join(root, "class", "net", link, "device"))
	if errors.Is(err, nlconn.ErrNotExist) {
		return "", nil
	}
	return withoutVirtio(real), err
}

// withoutVirtio returns the parent directory of a virtio device, and path for any other
// device.
func withoutVirtio(path string) string {
	if strings.HasPrefix(filepath.Base(path), "virtio") {
		return filepath.Dir(path)
	}
	return path
}

// resolveDevice follows the symbolic links in path and returns a device's directory.
func resolveDevice(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", fmt.Errorf("device %q: %w", path, nlconn.ErrNotExist)
	case err != nil:
		return "", fmt.Errorf("device %q: %w", path, err)
	case !strings.HasPrefix(real, root+"/devices/"):
		return "", fmt.Errorf("device %q: %w: is not below %s/devices", path, nlconn.ErrInvalid, root)
	}
	return real, nil
}

func readDevice(path string) (Device, error) {
	d := Device{Path: path}
	driver, err := os.Readlink(filepath.Join(path, "driver"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Device{}, fmt.Errorf("driver of %q: %w", path, err)
	}
	if err == nil {
		d.Driver = filepath.Base(driver)
	}
	d.Links, err = linksBelow(path)
	if err != nil || len(d.Links) > 0 {
		return d, err
	}
	children, err := os.ReadDir(path)
	if err != nil {
		return Device{}, fmt.Errorf("device %q: %w", path, err)
	}
	for _, c := range children {
		if c.IsDir() && strings.HasPrefix(c.Name(), "virtio") {
			d.Links, err = linksBelow(filepath.Join(path, c.Name()))
			if err != nil || len(d.Links) > 0 {
				return d, err
			}
		}
	}
	return d, nil
}

// linksBelow lists the network interfaces of the device in the directory path.
func linksBelow(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(path, "net"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("network interfaces of %q: %w", path, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
