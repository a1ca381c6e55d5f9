package hostdevice

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/store"
)

// Role is the host-device role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{"host-device"},
		Summary:      "moves a device of the host into the container",
		Reference:    "v1.10.0",
		Capabilities: []string{"deviceID"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: a device has one owner at a time.
func (r *role) Shared() []string { return nil }

// BringsAddresses reports whether the device can have the host's addresses.
func (r *role) BringsAddresses() bool { return r.conf.UseInterfaceNetwork }

// Observe finds the device on the host. A repeated call in one ADD keeps the
// first result: the device may already be in the container when the IPAM plugin
// runs.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, ns *netops.Namespace) error {
	if in.Observed != nil {
		return nil
	}
	if in.Prev != nil { // CHECK: the device is in the container
		hw, key, err := r.conf.hardware()
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		in.Observed = selected{Userspace: hw.IsUserspace()}
		return nil
	}
	s, err := r.conf.find(ctx, h.Net)
	if errors.Is(err, netops.ErrNotExist) {
		if holder := r.holder(ctx, h); holder != nil {
			return holder
		}
	}
	if err != nil {
		return err
	}
	if r.conf.UseInterfaceNetwork {
		if s.Userspace {
			return &roles.ConfError{Path: "useInterfaceNetwork", Reason: "the device has a userspace driver and so no interface: remove the key"}
		}
		s.Network, err = readNetwork(ctx, h.Net, s.Link, ns)
		if err != nil {
			return fmt.Errorf("useInterfaceNetwork: %w", err)
		}
	}
	in.Observed = s
	return s.device().CheckReturned(ctx, h)
}

// Orphans is what an attachment without a record can have left: the device, in
// the container or back on the host, identified by its alias.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Move{From: netops.Host, To: netops.Container, As: in.Key.IfName, Alias: in.Label},
	}}
}

// Status reports whether the device is on the host or used by an attachment,
// which is not an error of the node. Without a configured device it reports no
// error: the device ID comes with ADD.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if !r.conf.selects() {
		return nil
	}
	_, err := r.conf.find(ctx, h.Net)
	if err == nil || errors.Is(r.holder(ctx, h), store.ErrTaken) {
		return nil
	}
	return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
}
