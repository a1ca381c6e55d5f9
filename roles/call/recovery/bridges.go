package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// RestoreBridges makes bridges that another program deleted, with their MAC and IP addresses, and
// makes the interfaces of attachments their ports again. It leaves a bridge without such interfaces,
// and a bridge with VLAN filtering, because ports without their VLANs would not be isolated. It returns
// the number of restored bridges.
func RestoreBridges(ctx context.Context, h *roles.Host) (restored int, err error) {
	links, err := h.Net.HostLinks(ctx)
	if err != nil {
		return 0, err
	}
	single := map[string]bool{} // the links that are no ports
	for _, l := range links {
		single[l.Name] = l.Master == 0
	}
	networks, err := store.Read(ctx, h.Store, (*store.Tx).Networks)
	errs := []error{err}
	for i := range networks {
		shared, err := attachment.DecodeChanges(networks[i].Shared)
		errs = append(errs, err)
		for _, c := range shared {
			if l, ok := c.Do.Object.(*netops.Link); ok && l.In == netops.Host && l.Kind == "bridge" {
				done, err := restoreBridge(ctx, h, networks[i].Name, l, shared, single)
				if done {
					restored++
				}
				errs = append(errs, err)
			}
		}
	}
	return restored, errors.Join(errs...)
}

// restoreBridge makes the bridge of one network, if interfaces of attachments were its ports and are
// no ports now. It reports whether it did.
func restoreBridge(ctx context.Context, h *roles.Host, network string, bridge *netops.Link, shared []netops.Change, single map[string]bool) (bool, error) {
	lock, err := h.Store.LockShared(ctx, attachment.BridgeLock(bridge.Name), true)
	if err != nil {
		return false, err
	}
	defer lock.Unlock()
	ports, filter, err := formerPorts(ctx, h, network, bridge.Name, single)
	if err != nil || len(ports) == 0 {
		return false, err
	}
	if bridge.Bridge != nil && bridge.Bridge.VLANFiltering {
		return false, fmt.Errorf("bridge %q was deleted and has VLANs: %w: restart the containers of network %q", bridge.Name, netops.ErrNotSupported, network)
	}
	own, settings := *bridge, netops.Bridge{}
	if bridge.Bridge != nil {
		settings = *bridge.Bridge
	}
	settings.Filter = filter
	own.Bridge = &settings
	spec := netops.Spec{Objects: []netops.Object{&own}}
	for _, c := range shared {
		if a, ok := c.Do.Object.(*netops.Addr); ok && a.In == netops.Host && a.Link == bridge.Name {
			spec.Add(a)
		}
	}
	for _, p := range ports {
		spec.Add(&netops.Link{In: netops.Host, Shared: true, Name: p.Name, Master: p.Master})
		if p.Port != nil { // the kernel refuses the flags until the link is a port
			spec.Add(&netops.Link{In: netops.Host, Shared: true, Name: p.Name, Port: p.Port})
		}
	}
	if err := h.Net.Ensure(ctx, spec, nil); err != nil {
		return false, fmt.Errorf("restore bridge %q: %w", bridge.Name, err)
	}
	h.Log.Warn("another program deleted a bridge of containers: it was restored", "bridge", bridge.Name, "network", network, "ports", len(ports))
	return true, nil
}

// formerPorts returns the host's interfaces of a network's complete attachments that are recorded as
// ports of a bridge and are no ports now. filter is true if network policies were enforced on one of
// them: the bridge must pass its packets to the filter before it has a port.
func formerPorts(ctx context.Context, h *roles.Host, network, bridge string, single map[string]bool) (ports []*netops.Link, filter bool, err error) {
	all, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments(network) })
	for _, a := range all {
		for _, part := range a.Parts {
			changes, e := attachment.DecodeChanges(part.Changes)
			err = errors.Join(err, e)
			for _, c := range changes {
				if _, is := c.Do.Object.(*netops.PodPolicy); is {
					filter = true
				}
				l, ok := c.Do.Object.(*netops.Link)
				if ok && part.State == store.Done && l.In == netops.Host && l.Master == bridge && single[l.Name] {
					ports = append(ports, l)
				}
			}
		}
	}
	return ports, filter, err
}
