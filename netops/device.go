package netops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// sysfs is the kernel's tree of devices (kernel: Documentation/filesystems/sysfs.rst).
const sysfs = "/sys"

// Device is a piece of hardware as sysfs shows it. Its links are those of the
// network namespace that sysfs was mounted for.
type Device struct {
	// Path is the device's own directory, below /sys/devices.
	Path string
	// Driver is what is bound to it, "" for none.
	Driver string
	// Links are the names of its network interfaces, sorted; of a virtio device
	// they are found one level below.
	Links []string
}

// DeviceAt reads the device whose directory is path, below /sys/devices and
// without a symbolic link in it; a virtio device is told as the one that it is
// a part of. The error wraps ErrInvalid for any other path
// and ErrNotExist if there is no such device.
func (n *Net) DeviceAt(path string) (Device, error) {
	clean := filepath.Clean(path)
	real, err := resolveDevice(clean)
	if err != nil {
		return Device{}, err
	}
	if real != clean {
		return Device{}, fmt.Errorf("device %q: %w: is a symbolic link to %q", path, ErrInvalid, real)
	}
	return readDevice(withoutVirtio(real))
}

// DeviceOn reads a device by its name on a bus ("pci", "auxiliary"). The error
// wraps ErrNotExist if there is no such device.
func (n *Net) DeviceOn(bus, id string) (Device, error) {
	path := filepath.Join(sysfs, "bus", bus, "devices", id)
	if filepath.Base(path) != id || filepath.Base(filepath.Dir(filepath.Dir(path))) != bus {
		return Device{}, fmt.Errorf("%s device %q: %w", bus, id, ErrInvalid)
	}
	real, err := resolveDevice(path)
	if err != nil {
		return Device{}, err
	}
	return readDevice(real)
}

// DeviceOf is the directory of the device that a host link is of, below
// /sys/devices; "" for a virtual link.
func (n *Net) DeviceOf(link string) (string, error) {
	if err := rtnl.CheckName(link); err != nil {
		return "", err
	}
	real, err := resolveDevice(filepath.Join(sysfs, "class", "net", link, "device"))
	if errors.Is(err, ErrNotExist) {
		return "", nil
	}
	return withoutVirtio(real), err
}

// withoutVirtio is the device that a virtio device is a part of.
func withoutVirtio(path string) string {
	if strings.HasPrefix(filepath.Base(path), "virtio") {
		return filepath.Dir(path)
	}
	return path
}

// resolveDevice follows what symbolic links are in path; what comes out is a
// device's directory, or an error.
func resolveDevice(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", fmt.Errorf("device %q: %w", path, ErrNotExist)
	case err != nil:
		return "", fmt.Errorf("device %q: %w", path, err)
	case !strings.HasPrefix(real, sysfs+"/devices/"):
		return "", fmt.Errorf("device %q: %w: is not below %s/devices", path, ErrInvalid, sysfs)
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

// linksBelow lists the network interfaces of one device.
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
