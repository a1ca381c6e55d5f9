package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the bridge role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{"bridge"},
		Kind:         roles.Interface,
		Summary:      "a veth pair on a Linux bridge, with gateway, masquerade and VLANs",
		Reference:    "v1.9.1",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
		Conf:         func() any { return new(Conf) },
		New:          newHandler,
	}
}

func newHandler(raw []byte) (roles.Handler, error) {
	c := new(Conf)
	if err := roles.Decode(raw, c); err != nil {
		return nil, err
	}
	c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return attach.New(&role{conf: c}), nil
}

// role implements attach.Interface for one configuration.
type role struct{ conf *Conf }

func (r *role) Role() string { return "bridge" }

func (r *role) IPAM() string { return r.conf.IPAM.Type }

func (r *role) Shared() []string { return []string{"bridge/" + r.conf.Bridge} }

// observed is what Wire needs to know of the kernel.
type observed struct {
	// bridgeMAC is the bridge's, or the one to make it with.
	bridgeMAC string
	// gatewayMAC is the same for the VLAN gateway interface.
	gatewayMAC string
	// bridgeLearnt and gatewayLearnt tell that the interface exists: then its
	// own MAC is no wish of ours.
	bridgeLearnt, gatewayLearnt bool
}

// Observe reads the bridge's and the gateway interface's MACs. The kernel
// would give a new bridge the lowest MAC of its ports and change it as ports
// come and go; one set at creation stays.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input) error {
	if r.conf.IPMasq && r.conf.IPMasqBackend == "iptables" {
		h.Log.Warn("ipMasqBackend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
	var o observed
	var err error
	if o.bridgeMAC, o.bridgeLearnt, err = linkMAC(ctx, h, r.conf.Bridge); err != nil {
		return err
	}
	if r.conf.VLAN != 0 && r.conf.IsGateway {
		if o.gatewayMAC, o.gatewayLearnt, err = linkMAC(ctx, h, r.conf.gatewayLink()); err != nil {
			return err
		}
	}
	in.Observed = o
	return nil
}

// linkMAC is a host link's MAC, or a new random one for a link that is absent.
func linkMAC(ctx context.Context, h *roles.Host, name string) (mac string, learnt bool, err error) {
	l, err := h.Net.Link(ctx, nil, name)
	if err == nil {
		return l.MAC, true, nil
	}
	if !errors.Is(err, netops.ErrNotExist) {
		return "", false, err
	}
	m := make(net.HardwareAddr, 6)
	if _, err := rand.Read(m); err != nil {
		return "", false, fmt.Errorf("choose a MAC for %q: %w", name, err)
	}
	m[0] = m[0]&^1 | 2
	return m.String(), false, nil
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

// envError is a CNI_ARGS value that cannot be used.
type envError struct{ key, value string }

func (e *envError) Error() string {
	return fmt.Sprintf("CNI_ARGS: %s: %q is no Ethernet address: use the form 02:00:00:00:00:01", e.key, e.value)
}

func (e *envError) Unwrap() error { return roles.ErrEnv }

func itoa(i int) string { return strconv.Itoa(i) }
