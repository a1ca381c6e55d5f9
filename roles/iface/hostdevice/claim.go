package hostdevice

import (
	"context"
	"errors"
	"net"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// claimKind is the kind of the claims on devices. Their names are interfaces'
// names on the host and, as they have a "/", directories of hardware.
const claimKind = "device"

// claims are what nobody else can have together with the device. Hardware with
// several interfaces can have several owners.
func (s *selected) claims() []attach.Claim {
	var out []attach.Claim
	if s.Link != "" {
		out = append(out, attach.Claim{Kind: claimKind, Name: s.Link})
	}
	if s.Userspace || s.Sole {
		out = append(out, attach.Claim{Kind: claimKind, Name: s.Path})
	}
	return out
}

// holder is a TakenError that names who has the device that is not on the host,
// or nil.
func (r *role) holder(ctx context.Context, h *roles.Host) error {
	wanted := r.conf.claimed(h.Net)
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
				return &store.TakenError{What: claimKind + " " + c.Name, Owner: c.Owner}
			}
		}
		return nil
	})
}

// returned is a TakenError if the device is another attachment's that came back
// when its namespace ended: nobody has given it its name again.
func (s *selected) returned(ctx context.Context, h *roles.Host) error {
	if s.Alias == "" {
		return nil
	}
	return h.Store.View(ctx, func(tx *store.Tx) error {
		a, err := record.AttachmentOfAlias(tx, s.Alias)
		if err == nil && a != nil {
			err = &store.TakenError{What: claimKind + " " + s.Link, Owner: a.Key}
		}
		return err
	})
}

// claimed is the name of the claim that whoever has the selected device holds,
// as far as the configuration and sysfs tell.
func (c *Conf) claimed(n *netops.Net) string {
	if c.Device != "" {
		return c.Device
	}
	hw, _, err := c.hardware(n)
	if c.HWAddr == "" && c.KernelPath != "" {
		hw, err = n.DeviceAt(c.KernelPath)
	}
	if err != nil {
		return ""
	}
	return hw.Path
}
