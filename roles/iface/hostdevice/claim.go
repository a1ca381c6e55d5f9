package hostdevice

import (
	"context"
	"errors"
	"net"

	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// claimKind is the kind of the claims on devices. A claim's name is the name of
// an interface on the host, or the hardware's directory below /sys/devices:
// only directories contain a "/".
const claimKind = "device"

// claims returns the claims of the attachment: the interface, and the hardware's
// directory if the hardware has no other interface or has a userspace driver. Hardware
// with several interfaces can have an owner for each interface.
func (s *selected) claims() []store.Resource {
	var out []store.Resource
	if s.Link != "" {
		out = append(out, store.Resource{Kind: claimKind, Name: s.Link})
	}
	if s.Userspace || s.Sole {
		out = append(out, store.Resource{Kind: claimKind, Name: s.Path})
	}
	return out
}

// holder is a TakenError with the attachment that holds a device missing on the
// host, or nil if no attachment holds it.
func (r *role) holder(ctx context.Context, h *roles.Host) error {
	wanted := r.conf.claimed()
	var mac string
	if a, err := net.ParseMAC(r.conf.HWAddr); err == nil && r.conf.Device == "" {
		mac = a.String()
	}
	return h.Store.View(ctx, func(tx *store.Tx) error {
		claims, err := tx.Claims(claimKind)
		if err != nil {
			return err
		}
		for _, c := range claims {
			a, err := tx.Attachment(c.Owner)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if c.Name == wanted || a != nil && mac != "" && a.MAC == mac {
				return &store.TakenError{What: c.Resource().String(), Owner: c.Owner}
			}
		}
		return nil
	})
}

// returned is a TakenError if another attachment holds the device although it
// is on the host: the kernel moved it back when that attachment's namespace
// ended, under the name that it had in the container.
func (s *selected) returned(ctx context.Context, h *roles.Host) error {
	if s.Alias == "" {
		return nil
	}
	return h.Store.View(ctx, func(tx *store.Tx) error {
		a, err := attachment.OfAlias(tx, s.Alias)
		if err == nil && a != nil {
			err = &store.TakenError{What: claimKind + " " + s.Link, Owner: a.Key}
		}
		return err
	})
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
