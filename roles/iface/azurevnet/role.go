package azurevnet

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/azureview"
)

// Role is the azure-vnet role's entry in the table.
func Role() roles.Role {
	return roles.Role{
		Names:        []string{roleName},
		Kind:         roles.Interface,
		Summary:      "containers with addresses of the cloud's own network, by a bridge that has the node's interface, or routed",
		Capabilities: []string{"dns"},
		Conf:         func() any { return new(Conf) },
		Ignored:      ignored(),
		New:          handles(attach.Judged(readRole)),
		Undo:         undoes(readRole),
		Verbs:        verbs(),
	}
}

const roleName = "azure-vnet"

// hostPrefix is what the host's ends begin with; 11 hex digits follow.
const hostPrefix = "azv"

// readRole decodes and defaults a configuration; with a ConfError there is what
// could be decoded.
func readRole(raw []byte) (*role, error) {
	c := new(Conf)
	err := roles.Decode(raw, c)
	c.withDefaults()
	return &role{conf: c}, err
}

// role implements attach.Interface for one configuration.
type role struct{ conf *Conf }

func (r *role) Role() string { return roleName }

func (r *role) Validate() error { return r.conf.Validate() }

func (r *role) IPAM() string { return r.conf.IPAM.Type }

func (r *role) HostPrefix() string { return hostPrefix }

// Shared is one name for all bridges: which one it is follows from the address,
// where the configuration does not tell.
func (r *role) Shared() []string { return []string{roleName} }

// observed is what Wire needs to know of the kernel.
type observed struct {
	// Master is the node's interface on the network.
	Master master
	// Bridge is the name of the bridge that has, or will have, the master.
	Bridge string
}

// Observe finds the node's interface that the address is of.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	m, err := r.findMaster(ctx, h, in)
	if errors.Is(err, errNoMaster) && container == nil {
		m, err = planned(ctx, h)
	}
	if err != nil {
		return err
	}
	in.Observed = observed{Master: m, Bridge: r.conf.bridgeOf(m.Index)}
	return nil
}

// Wire computes the spec and the result of one attachment.
func (r *role) Wire(in *attach.Input) (*attach.Wiring, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("azure-vnet: was not observed")
	}
	wire := r.wireBridged
	if !r.conf.bridged() {
		wire, o.Bridge = r.wireTransparent, ""
	}
	w, err := wire(in, o)
	if err != nil {
		return nil, err
	}
	w.Note, err = azureview.Endpoint{
		Mode: r.conf.Mode, Master: o.Master.Name, MasterMAC: o.Master.MAC, Bridge: o.Bridge, Result: in.IPAM,
	}.Note()
	return w, err
}

// mtu is that of both ends.
func (r *role) mtu(o observed) int {
	if r.conf.MTU != 0 {
		return r.conf.MTU
	}
	return o.Master.MTU
}
