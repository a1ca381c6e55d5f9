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

// Check reports an unknown kind, and the keys that set a MAC which the pair cannot have.
func (t LinkType) Check(f *roles.Faults, macs roles.MACKeys) {
	switch t {
	case "", Veth:
		return
	case Netkit:
	default:
		f.Addf("linkType", "%q is not known: use \"veth\" or \"netkit\"", string(t))
		return
	}
	for _, m := range macs {
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
