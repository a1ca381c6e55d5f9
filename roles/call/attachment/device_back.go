package attachment

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// NameDevices sets the alias of every host device in a container to the device's name on
// the host. The reference plugin reads this alias when it returns a device. Our own DEL
// finds these devices by their MACs.
func NameDevices(ctx context.Context, h *roles.Host) error {
	atts, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	if err != nil {
		return err
	}
	var errs []error
	for i := range atts {
		changes, err := Changes(&atts[i])
		errs = append(errs, err)
		for _, c := range changes {
			if m, ok := c.Do.Object.(*netops.Move); ok && m.Name != "" {
				errs = append(errs, nameDevice(ctx, h, &atts[i], m))
			}
		}
	}
	return errors.Join(errs...)
}

// nameDevice sets the alias of one device, unless its namespace does not exist.
func nameDevice(ctx context.Context, h *roles.Host, a *store.Attachment, m *netops.Move) error {
	ns, err := OpenRecorded(h, a.Netns)
	if ns == nil {
		return err
	}
	defer ns.Close()
	l, err := h.Net.Link(ctx, ns, m.As)
	if err != nil || !isOurs(l, a.Key) {
		return nil // the device was renamed or deleted
	}
	named := netops.Spec{Objects: []netops.Object{&netops.Link{In: netops.Container, Name: m.As, Alias: m.Name}}}
	if err := h.Net.Ensure(ctx, named, ns); err != nil {
		return fmt.Errorf("name device %q in container %q: %w", m.Name, a.ContainerID, err)
	}
	return nil
}
