package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// NameDevices sets the alias of the host's devices in containers to their name on the
// host, which the reference plugin reads when it returns a device. Our own DEL finds them by their addresses then.
func NameDevices(ctx context.Context, h *roles.Host) error {
	var atts []store.Attachment
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		atts, err = tx.Attachments("")
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for i := range atts {
		for _, p := range atts[i].Parts {
			changes, err := DecodeChanges(p.Changes)
			errs = append(errs, err)
			for _, c := range changes {
				if m, ok := c.Do.Object.(*netops.Move); ok && m.Name != "" {
					errs = append(errs, nameDevice(ctx, h, &atts[i], m))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// nameDevice does so for one device, unless its namespace is gone.
func nameDevice(ctx context.Context, h *roles.Host, a *store.Attachment, m *netops.Move) error {
	ns, err := OpenRecorded(h, a.Netns)
	if ns == nil {
		return err
	}
	defer ns.Close()
	l, err := h.Net.Link(ctx, ns, m.As)
	if err != nil || !isOurs(l, a.Key) {
		return nil // renamed or gone: it cannot be found by its name
	}
	named := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: m.As, Alias: m.Name}}}
	if err := h.Net.Ensure(ctx, named, ns); err != nil {
		return fmt.Errorf("name device %q in container %q: %w", m.Name, a.ContainerID, err)
	}
	return nil
}
