package hostdevice

import (
	"context"
	"net"

	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// device is what the attachment claims. Hardware with a userspace driver has no
// interface.
func (s *selected) device() attach.Device {
	return attach.Device{Link: s.Link, Alias: s.Alias, Path: s.Path, Whole: s.Userspace || s.Sole}
}

// holder is a TakenError with the attachment that holds a device missing on the
// host, or nil if no attachment holds it.
func (r *role) holder(ctx context.Context, h *roles.Host) error {
	var mac string
	if a, err := net.ParseMAC(r.conf.HWAddr); err == nil && r.conf.Device == "" {
		mac = a.String()
	}
	return attach.DeviceHolder(ctx, h, r.conf.claimed(), mac)
}

// claimed is the name of the claim on the selected device, read from the
// configuration and sysfs, or "" if they do not identify it.
func (c *Conf) claimed() string {
	if c.Device != "" {
		return c.Device
	}
	hw, _, err := c.hardware()
	if c.HWAddr == "" && c.KernelPath != "" {
		hw, err = sysfs.At(c.KernelPath)
	}
	if err != nil {
		return ""
	}
	return hw.Path
}
