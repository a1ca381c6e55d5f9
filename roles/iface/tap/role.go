package tap

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// kind is the kernel's kind of link: the tun driver creates tap devices.
const kind = "tun"

// Role is the tap role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{"tap"},
		Summary:      "a tap device in the container, for a virtual machine or a program there",
		Reference:    "v1.10.0",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: every object is in the container.
func (r *role) Shared() []string { return nil }

// Observe checks that the bridge exists in the container's namespace and is a
// bridge. CHECK skips this: it compares the device's master instead.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if r.conf.Bridge == "" || container == nil || in.Prev != nil {
		return nil
	}
	l, err := h.Net.Link(ctx, container, r.conf.Bridge)
	if errors.Is(err, netops.ErrNotExist) {
		return &roles.ConfError{Path: "bridge", Reason: "\"" + r.conf.Bridge + "\" does not exist in the container's namespace: create it first"}
	}
	if err == nil && l.Kind != "bridge" {
		err = &roles.ConfError{Path: "bridge", Reason: "\"" + r.conf.Bridge + "\" in the container's namespace is not a bridge: use the name of a bridge"}
	}
	return err
}

// Build computes the spec and the result of one attachment.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	mac, err := in.Args.MAC(r.conf.RuntimeConfig.MAC, r.conf.MAC)
	if err != nil {
		return nil, err
	}
	own := netops.Link{
		Kind: kind, MAC: mac, MTU: r.conf.MTU, Master: r.conf.Bridge,
		Owner: r.conf.Owner, Group: r.conf.Group, MultiQueue: r.conf.MultiQueue,
	}
	if own.MAC == "" || in.Prev != nil {
		own.MAC = in.ContainerMAC
	}
	return attach.InContainer(in, own, r.conf.DNS)
}

// Orphans is what an attachment without a record can have left: the device in the
// container.
func (r *role) Orphans(in *attach.Input) netops.Spec { return attach.OrphansInContainer(in, kind) }
