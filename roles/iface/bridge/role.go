package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2" // crypto/rand would slow down every start of the binary
	"net"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Role is the bridge role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{"bridge"},
		Summary:      "a veth pair on a Linux bridge, with gateway, masquerade and VLANs",
		Reference:    "v1.10.0",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

func (r *role) Shared() []string { return []string{attachment.BridgeLock(r.conf.Bridge)} }

// Masquerade is the configured masquerading.
func (r *role) Masquerade() attach.Masquerade { return r.conf.masquerade() }

// observed is the kernel state that Build needs.
type observed struct {
	bridge, gateway hostLink
	// followsPorts reports that the bridge takes its MAC from its ports, or
	// will take it from its first port, because no program set one.
	followsPorts bool
}

// hostLink is an interface of the host that ADD creates if it is missing.
type hostLink struct {
	// MAC is the existing interface's MAC, or one for a new interface and for
	// one that has none.
	MAC string
	// HasMAC reports that the interface has this MAC.
	HasMAC bool
}

// Observe reads the MACs of the bridge and of the gateway interface. For a
// missing one it chooses a MAC: without one the kernel gives a new bridge the
// lowest MAC of its ports and changes it when ports come and go.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	if err := r.conf.masquerade().Observe(ctx, h, in); err != nil {
		return err
	}
	var o observed
	bridge, err := observeLink(ctx, h, r.conf.Bridge, &o.bridge)
	if err != nil {
		return err
	}
	if r.vlansIdle(bridge) && in.Observed == nil && in.Prev == nil {
		h.Log.Warn("the bridge does not filter VLANs: the keys vlan and vlanTrunk have no effect and CHECK fails; run 'ip link set "+
			bridge.Name+" type bridge vlan_filtering 1'", "network", in.Key.Network)
	}
	if bridge.Index != 0 && bridge.Alias != attachment.SharedAlias && in.Prev == nil {
		o.followsPorts, err = followsPorts(ctx, h, bridge)
		if err != nil {
			return err
		}
	}
	if r.conf.VLAN != 0 && r.conf.IsGateway {
		if _, err := observeLink(ctx, h, r.conf.gatewayLink(), &o.gateway); err != nil {
			return err
		}
	}
	in.Observed = o
	return nil
}

// vlansIdle reports whether the bridge exists without VLAN filtering although
// the configuration has VLANs. ADD only warns, as the reference plugin ignores
// it: the bridge belongs to the operator, filtering may be turned on later, and
// a trunk works without it.
func (r *role) vlansIdle(bridge netops.LinkInfo) bool {
	return r.conf.vlanAware() && bridge.Kind == "bridge" && !bridge.VLANFiltering
}

// observeLink reads a host link. For a missing link it chooses a random MAC, and
// for a bridge that lost its last port: the kernel takes the MAC away with that.
func observeLink(ctx context.Context, h *roles.Host, name string, o *hostLink) (netops.LinkInfo, error) {
	l, err := h.Net.Link(ctx, nil, name)
	if err != nil && !errors.Is(err, netops.ErrNotExist) {
		return l, err
	}
	if roles.UnicastMAC(l.MAC) != "" {
		*o = hostLink{MAC: l.MAC, HasMAC: true}
		return l, nil
	}
	m := net.HardwareAddr(binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6])
	m[0] = m[0]&^1 | 2
	*o = hostLink{MAC: m.String()}
	return l, nil
}

// followsPorts reports whether the bridge may have taken its MAC from a port:
// it has no port, or it has one with the same MAC. The kernel does not report
// whether a program set the MAC.
func followsPorts(ctx context.Context, h *roles.Host, bridge netops.LinkInfo) (bool, error) {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return false, err
	}
	ports := 0
	for _, l := range links {
		if l.Master != bridge.Name {
			continue
		}
		if l.MAC == bridge.MAC {
			return true, nil
		}
		ports++
	}
	return ports == 0, nil
}

// Status reports whether the configured name is free or belongs to a bridge, and whether
// the node has the addresses of egressAddress, so that ADD can use them.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	l, err := h.Net.Link(ctx, nil, r.conf.Bridge)
	switch {
	case errors.Is(err, netops.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	case l.Kind != "bridge":
		return fmt.Errorf("%w: interface %q is a %s, not a bridge: rename it, or set \"bridge\" to another name", roles.ErrNotAvailable, l.Name, l.Kind)
	}
	return r.conf.masquerade().Status(ctx, h)
}
