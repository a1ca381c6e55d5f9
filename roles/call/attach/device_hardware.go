package attach

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/sysfs"
)

// DeviceOf returns the device of an interface of the host, with what sysfs has about its hardware.
func DeviceOf(l netops.LinkInfo) (Device, error) {
	d := Device{Link: l.Name, Alias: l.Alias}
	path, err := sysfs.Of(l.Name)
	if err != nil || path == "" {
		return d, err
	}
	hw, err := sysfs.At(path)
	d.Path, d.Whole = path, len(hw.Links) == 1
	return d, err
}
