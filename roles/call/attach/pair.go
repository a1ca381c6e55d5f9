package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// LinkType is the value of the key linkType: the kind of the pair between the host and the
// container.
type LinkType string

// The kinds of pairs. Veth is the default. The ends of a Netkit pair have no MAC, because
// it is in mode l3, and the kernel resolves no addresses on them.
const (
	Veth   LinkType = "veth"
	Netkit LinkType = "netkit"
)

// PairConf has the keys of a role that makes a pair of either kind.
type PairConf struct {
	// LinkType is the kind of the pair: "veth" (default), or "netkit" in mode l3,
	// which needs Linux 6.7 with CONFIG_NETKIT. The interfaces of a netkit pair
	// have neither MAC nor ARP.
	LinkType LinkType `json:"linkType,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is an error with linkType "netkit". With "veth" it has no effect
		// here: add the type tuning to the list.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// Args holds args.cni.
	Args struct {
		CNI struct {
			// MAC is an error with linkType "netkit". With "veth" it has no effect
			// here: add the type tuning to the list.
			MAC string `json:"mac,omitempty"`
		} `json:"cni,omitzero"`
	} `json:"args,omitzero"`
}

// CheckPair reports an unknown kind, and the keys that set a MAC which the pair cannot have.
func (c *PairConf) CheckPair(f *roles.Faults) {
	switch c.LinkType {
	case "", Veth:
		return
	case Netkit:
	default:
		f.Addf("linkType", "%q is not known: use \"veth\" or \"netkit\"", string(c.LinkType))
		return
	}
	for _, m := range (roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "args.cni.mac", Value: c.Args.CNI.MAC}}) {
		if m.Value != "" {
			f.Addf(m.Path, "%s", noMAC)
		}
	}
}

const noMAC = `cannot be set with linkType "netkit", whose interfaces have no MAC: remove the key, or set linkType to "veth"`

// Available returns an error if this kernel cannot make the pair. Every kernel that cnibox
// runs on makes a veth pair.
func (t LinkType) Available(ctx context.Context, h *roles.Host) error {
	if t != Netkit || !errors.Is(h.Net.HasKind(ctx, string(t)), netops.ErrNotSupported) {
		return nil
	}
	return &roles.ConfError{Path: "linkType", Reason: `"netkit" needs Linux 6.7 or newer with CONFIG_NETKIT, which this kernel does not have: set "veth", or use such a kernel`}
}

// Status returns Available's error for STATUS.
func (t LinkType) Status(ctx context.Context, h *roles.Host) error {
	if err := t.Available(ctx, h); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}

// Input returns the input of Build for the pair: without MACs if it has none. It returns an
// error if CNI_ARGS ask for one.
func (t LinkType) Input(in *Input) (*Input, error) {
	if t != Netkit {
		return in, nil
	}
	if in.Prev == nil && in.Args.Get("MAC") != "" {
		return nil, &roles.EnvError{Name: "CNI_ARGS: MAC", Reason: noMAC}
	}
	own := *in
	own.HostMAC, own.ContainerMAC = "", ""
	return &own, nil
}

// Pair returns the pair between the host and the container. in is that of Input.
func (t LinkType) Pair(in *Input, mtu int, ips []IPConfig) *netops.Link {
	mode := ""
	if t == Netkit {
		mode = "l3"
	}
	return &netops.Link{
		In: netops.Host, Name: in.HostLink, Kind: t.Kind(), Mode: mode, MAC: in.HostMAC, MTU: mtu, Alias: attachment.Alias(in.Key, Prefixes(ips)),
		Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
	}
}

// Kind returns the kernel's name of the kind.
func (t LinkType) Kind() string {
	if t == "" {
		return string(Veth)
	}
	return string(t)
}
