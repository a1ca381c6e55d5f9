package attach

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// kindDevice is the kind of the claims on devices. A claim's name is the name of
// an interface on the host, or the hardware's directory below /sys/devices:
// only directories contain a "/".
const kindDevice = "device"

// Device is a device of the host that one attachment can have.
type Device struct {
	// Link is the device's interface on the host, or "", and Alias its alias.
	Link, Alias string
	// Path is the hardware's directory below /sys/devices, or "" for a virtual device.
	Path string
	// Whole means that the hardware has no other interface. Hardware
	// with several interfaces can have an owner for each interface.
	Whole bool
}

// Claims returns the claims of the attachment: the interface, and the hardware's
// directory if the attachment has the whole hardware.
func (d Device) Claims() []store.Resource {
	var out []store.Resource
	if d.Link != "" {
		out = append(out, store.Resource{Kind: kindDevice, Name: d.Link})
	}
	if d.Whole {
		out = append(out, store.Resource{Kind: kindDevice, Name: d.Path})
	}
	return out
}

// CheckReturned returns a TakenError if another attachment holds the device although it
// is on the host: the kernel moved it back when that attachment's namespace
// ended, under the name that it had in the container.
func (d Device) CheckReturned(ctx context.Context, h *roles.Host) error {
	if d.Alias == "" {
		return nil
	}
	return h.Store.View(ctx, func(tx *store.Tx) error {
		a, err := attachment.OfAlias(tx, d.Alias)
		if err == nil && a != nil {
			err = &store.TakenError{What: kindDevice + " " + d.Link, Owner: a.Key}
		}
		return err
	})
}

// DeviceHolder returns a TakenError with the attachment that holds a device missing on the
// host, or nil if no attachment holds it. The device has the name of a claim, or is
// the interface with the MAC of an attachment, if mac is not empty.
func DeviceHolder(ctx context.Context, h *roles.Host, name, mac string) error {
	return h.Store.View(ctx, func(tx *store.Tx) error {
		claims, err := tx.Claims(kindDevice)
		if err != nil {
			return err
		}
		for _, c := range claims {
			is := c.Name == name
			if !is && mac != "" {
				a, err := tx.Attachment(c.Owner)
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
				is = a != nil && a.MAC == mac
			}
			if is {
				return &store.TakenError{What: c.Resource().String(), Owner: c.Owner}
			}
		}
		return nil
	})
}
