package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2" // crypto/rand costs each start
	"net"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// Role is the bridge role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:        []string{"bridge"},
		Summary:      "a veth pair on a Linux bridge, with gateway, masquerade and VLANs",
		Reference:    "v1.9.1",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

func (r *role) Shared() []string { return []string{"bridge/" + r.conf.Bridge} }

// Masquerade is what the configuration asks for.
func (r *role) Masquerade() attach.Masquerade { return r.conf.masquerade() }

// observed is what Build needs to know of the kernel.
type observed struct {
	bridge, gateway hostLink
	// followsPorts tells that the bridge takes its MAC from its ports, or will
	// from the first one: nobody has set it.
	followsPorts bool
}

// hostLink is an interface of the host that may have to be made.
type hostLink struct {
	// MAC is the interface's, or the one to make it with.
	MAC string
	// Exists tells that the MAC is no wish of ours.
	Exists bool
}

// Observe reads the bridge's and the gateway interface's MACs. The kernel
// would give a new bridge the lowest MAC of its ports and change it as ports
// come and go; one set at creation stays.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	r.conf.masquerade().Warn(h, in)
	var o observed
	bridge, err := observeLink(ctx, h, r.conf.Bridge, &o.bridge)
	if err != nil {
		return err
	}
	if r.vlansIdle(bridge) && in.Observed == nil && in.Prev == nil {
		h.Log.Warn("the bridge does not filter VLANs: what the configuration says of them has no effect, and CHECK fails, until 'ip link set "+
			bridge.Name+" type bridge vlan_filtering 1'", "network", in.Key.Network)
	}
	if o.bridge.Exists && bridge.Alias != record.SharedAlias && in.Prev == nil {
		if o.followsPorts, err = followsPorts(ctx, h, bridge); err != nil {
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

// vlansIdle tells whether the VLANs of an existing bridge's ports would not count.
// It is no error of ADD, as it is none of the reference: the bridge is somebody's,
// may filter later, and a trunk works without.
func (r *role) vlansIdle(bridge netops.LinkInfo) bool {
	return r.conf.vlanAware() && bridge.Kind == "bridge" && !bridge.VLANFiltering
}

// observeLink reads a host link, or chooses a random MAC for one that is absent.
func observeLink(ctx context.Context, h *roles.Host, name string, o *hostLink) (netops.LinkInfo, error) {
	l, err := h.Net.Link(ctx, nil, name)
	if err == nil {
		*o = hostLink{MAC: l.MAC, Exists: true}
		return l, nil
	}
	if !errors.Is(err, netops.ErrNotExist) {
		return l, err
	}
	m := net.HardwareAddr(binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6])
	m[0] = m[0]&^1 | 2
	*o = hostLink{MAC: m.String()}
	return l, nil
}

// followsPorts tells whether a bridge may have its MAC from its ports: it has
// none yet, or one with this MAC. The kernel does not say who has set it.
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

// Status tells whether ADD would find its bridge's name usable.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	l, err := h.Net.Link(ctx, nil, r.conf.Bridge)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	if l.Kind != "bridge" {
		return fmt.Errorf("%w: interface %q is a %s, not a bridge: rename it or set \"bridge\"", roles.ErrNotAvailable, l.Name, l.Kind)
	}
	return nil
}

func itoa(i int) string { return strconv.Itoa(i) }
