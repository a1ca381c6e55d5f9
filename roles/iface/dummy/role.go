// Package dummy is the CNI role "dummy": it creates an interface without a
// connection, for a container that needs addresses only.
package dummy

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// kind is the kernel's kind of link.
const kind = "dummy"

// Conf is the network configuration of the dummy role. It has no keys of its
// own; ipam is required.
type Conf struct {
	roles.NetConf
}

// Validate requires ipam.
func (c *Conf) Validate() error {
	if c.IPAM.Type == "" {
		return &roles.ConfError{Path: "ipam.type", Reason: "is missing: the interface only holds addresses"}
	}
	return nil
}

// Role is the dummy role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:     []string{"dummy"},
		Summary:   "a dummy interface with addresses",
		Reference: "v1.10.0",
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: every object is in the container.
func (r *role) Shared() []string { return nil }

// Observe reads nothing.
func (r *role) Observe(context.Context, *roles.Host, *attach.Input, *netops.Namespace) error {
	return nil
}

// Build computes the spec and the result of one attachment.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	return attach.InContainer(in, netops.Link{Kind: kind, MAC: in.ContainerMAC}, r.conf.DNS)
}

// Orphans is what an attachment without a record can have left: the interface in
// the container.
func (r *role) Orphans(in *attach.Input) netops.Spec { return attach.OrphansInContainer(in, kind) }

// Status reports whether the kernel supports dummy interfaces.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	return attach.KindStatus(ctx, h, kind)
}
