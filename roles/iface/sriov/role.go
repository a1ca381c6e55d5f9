package sriov

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/store"
)

// Role is the sriov role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{"sriov"},
		Summary:      "configures a virtual function (SR-IOV) of a network card and moves it into the container",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
		Ignored:      []string{"logLevel", "logFile"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: a VF has one owner at a time.
func (r *role) Shared() []string { return nil }

// Observe finds the VF. A repeated call in one ADD keeps the first result: the
// VF may already be in the container when the IPAM plugin runs.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	if in.Observed != nil {
		return nil
	}
	if in.Prev != nil { // CHECK: the VF is in the container
		f, _, err := r.conf.find(ctx, h.Net)
		in.Observed = f
		return err
	}
	f, err := r.conf.available(ctx, h.Net)
	if errors.Is(err, netops.ErrNotExist) && f.Path != "" {
		if holder := attach.DeviceHolder(ctx, h, f.Path, ""); holder != nil {
			return holder
		}
	}
	if err != nil {
		return err
	}
	in.Observed = f
	return f.device().CheckReturned(ctx, h)
}

// Orphans is what an attachment without a record can have left: the VF, in the
// container or back on the host, identified by its alias.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	return netops.Spec{Objects: []netops.Object{
		&netops.Move{From: netops.Host, To: netops.Container, As: in.Key.IfName, Alias: in.Label},
	}}
}

// Status reports whether the VF is on the host or used by an attachment, which
// is not an error of the node. Without deviceID, which comes with ADD, it
// reports no error.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if r.conf.DeviceID == "" {
		return nil
	}
	f, err := r.conf.available(ctx, h.Net)
	if err == nil || f.Path != "" && errors.Is(attach.DeviceHolder(ctx, h, f.Path, ""), store.ErrTaken) {
		return nil
	}
	return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
}
