package azurevnet

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
)

// Role is the azure-vnet role's entry in the table.
func Role() roles.Role {
	r := attach.InterfaceRole(roles.Role{
		Names:        []string{roleName},
		Summary:      "containers with addresses of the cloud's own network, connected by a bridge or by routes",
		Capabilities: []string{"dns"},
		Ignored:      ignored,
		Verbs:        verbs,
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
	r.New, r.Undo = withFiles(r.New), withFiles(r.Undo)
	return r
}

const roleName = "azure-vnet"

// hostPrefix is the start of the names of the host's ends. 11 hex digits
// follow.
const hostPrefix = "azv"

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

func (r *role) HostPrefix() string { return hostPrefix }

// Shared is one lock for all bridges: without the key "bridge" the address
// determines the bridge.
func (r *role) Shared() []string { return []string{roleName} }

// observed is the kernel state that Build needs.
type observed struct {
	// Master is the node's interface on the network.
	Master master
	// Bridge is the name of the bridge that replaces, or will replace, the
	// master.
	Bridge string
	// Own are the node's own addresses, which the bridge takes over or has
	// taken over.
	Own []netip.Prefix
}

// Observe finds the node's interface that the address belongs to.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	m, err := r.findMaster(ctx, h, in)
	if errors.Is(err, errNoMaster) && container == nil {
		m, err = plannedMaster(ctx, h)
	}
	if errors.Is(err, errNoMaster) && r.conf.bridged() {
		err = cmp.Or(checkLostSubnet(ctx, h, in), err)
	}
	if err != nil {
		return err
	}
	o := observed{Master: m, Bridge: r.conf.bridgeOf(m.Index)}
	switch {
	case in.Prev != nil:
	case r.conf.bridged(): // only ADD records the node's addresses
		o.Own, err = o.readOwn(ctx, h)
		if err == nil {
			err = o.checkAddresses(ctx, h)
		}
	case r.conf.Mode == modeVLAN:
		ns := vlanNetnsOf(r.conf.VLANID, m)
		err = ns.checkMaster(ctx, h)
	}
	in.Observed = o
	return err
}

// readOwn reads the node's addresses, from the bridge if it has taken them over.
// Addresses that are not global unicast are left out, as in azure's state file.
func (o *observed) readOwn(ctx context.Context, h *roles.Host) ([]netip.Prefix, error) {
	local := func(p netip.Prefix) bool { return !p.Addr().IsGlobalUnicast() }
	for _, name := range []string{o.Bridge, o.Master.Name} {
		all, err := h.Net.Addresses(ctx, nil, name)
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return nil, err
		}
		if own := slices.DeleteFunc(all, local); len(own) > 0 {
			return own, nil
		}
	}
	return nil, nil
}

// Build computes the spec and the result of one attachment.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	build := r.buildBridged
	switch r.conf.Mode {
	case modeTransparent:
		build, o.Bridge = r.buildTransparent, ""
	case modeVLAN:
		build, o.Bridge = r.buildVLAN, ""
	}
	w, err := build(in, o)
	if err != nil {
		return nil, err
	}
	w.Note, err = azureview.Endpoint{
		Mode: r.conf.Mode, Master: o.Master.Name, MasterMAC: o.Master.MAC, Bridge: o.Bridge, Own: o.Own, VLAN: r.conf.VLANID, Result: in.IPAM,
	}.Note()
	return w, err
}

// mtu is the MTU of both ends of the veth pair.
func (r *role) mtu(o observed) int {
	if r.conf.MTU != 0 {
		return r.conf.MTU
	}
	return o.Master.MTU
}
