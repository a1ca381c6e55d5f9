package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// Upper is the common part of the roles macvlan, ipvlan and vlan: their interface is an
// upper device of another link, the master. A role embeds Upper and adds Build. The
// interface is made in the container's namespace, so an attachment has no host link, and
// DEL does not need the master.
type Upper struct {
	// Kind is the kernel's kind of link, which is the role's name too.
	Kind string
	// Net holds the keys that every configuration has.
	Net roles.NetConf
	// Master is the name of the lower link; empty means the default route's.
	Master string
	// MTU is at most the master's; 0 means the master's.
	MTU int
	// InContainer means that the master is in the container's namespace.
	InContainer bool
}

// MasterLink holds the attributes that Observe reads of a master.
type MasterLink struct {
	Name, MAC string
	MTU       int
	IsBridge  bool
}

// Shared returns nil: attachments do not change the master.
func (u *Upper) Shared() []string { return nil }

// Validate reports the faults of the shared keys.
func (u *Upper) Validate(f *roles.Faults) {
	f.CheckLink("master", u.Master)
	if u.MTU < 0 {
		f.Addf("mtu", "%d is negative: use 0 for the master's MTU, or a smaller MTU", u.MTU)
	}
}

// Observe reads the master once in an ADD, because the default route may change between
// the stages of an ADD. CHECK does not read the master: the default route may have
// changed since ADD, and the kernel deletes the interface together with its master.
func (u *Upper) Observe(ctx context.Context, h *roles.Host, in *Input, container *netops.Namespace) error {
	if in.Observed != nil {
		return nil
	}
	if in.Prev != nil || u.InContainer && container == nil && u.Master != "" {
		in.Observed = MasterLink{Name: u.Master}
		return nil
	}
	ns := container
	if !u.InContainer {
		ns = nil
	} else if ns == nil {
		return &roles.ConfError{Path: "master", Reason: "is not set, and its default, the device of the container's default route, is unknown without a container: set master or CNI_NETNS"}
	}
	m, err := u.readMaster(ctx, h, ns)
	if err == nil && ns == nil {
		err = u.filters(ctx, h, m)
	}
	in.Observed = m
	return err
}

// filters returns an error if the interface would receive what network policies forbid to pods: the master is their bridge, on which the interface is
// neither a port nor the node. No key allows it: a port of the bridge has the same connections.
func (u *Upper) filters(ctx context.Context, h *roles.Host, m MasterLink) error {
	if !m.IsBridge {
		return nil
	}
	on, err := enforce.Marked(ctx, h.Store)
	if err != nil || !on {
		return err
	}
	if on, err = h.Net.HasPodPorts(ctx, m.Name); err != nil || !on {
		return err
	}
	return &roles.ConfError{Path: "master", Reason: fmt.Sprintf("%q is a bridge of pods, and this node enforces network policies, which an interface of type %s on it bypasses: use the type bridge for it, or another master", m.Name, u.Kind)}
}

// readMaster reads the master in a namespace; nil means the host's.
func (u *Upper) readMaster(ctx context.Context, h *roles.Host, ns *netops.Namespace) (MasterLink, error) {
	name, err := u.Master, error(nil)
	if name == "" {
		if name, err = h.Net.DefaultRouteLink(ctx, ns); err != nil {
			return MasterLink{}, fmt.Errorf("find master by the default route of the %s: %w", u.place(), err)
		}
	}
	l, err := h.Net.Link(ctx, ns, name)
	if err != nil {
		return MasterLink{}, fmt.Errorf("master in the %s: %w", u.place(), err)
	}
	return MasterLink{Name: l.Name, MAC: l.MAC, MTU: l.MTU, IsBridge: l.Kind == "bridge"}, nil
}

// fits returns an error if the MTU is larger than the master's. The master's MTU is 0 if
// it is unknown, because the container is unknown.
func (u *Upper) fits(m MasterLink) error {
	if u.MTU <= m.MTU || m.MTU == 0 {
		return nil
	}
	return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf("%d is more than the %d of the master %q", u.MTU, m.MTU, m.Name)}
}

// place returns the master's namespace.
func (u *Upper) place() netops.Place {
	if u.InContainer {
		return netops.Container
	}
	return netops.Host
}

// Link returns the desired state: the interface with the attributes of own, its addresses
// and its routes. An interface without a MAC of its own has the master's.
func (u *Upper) Link(in *Input, own netops.Link) (*Desired, error) {
	master, ok := in.Observed.(MasterLink)
	if !ok {
		return nil, errors.New("master was not observed")
	}
	mac := own.MAC
	if mac == "" {
		mac = master.MAC
	}
	if in.Prev != nil {
		mac, own.MAC = ContainerMAC(in.Prev, in.Key.IfName), ""
	} else {
		if err := u.fits(master); err != nil {
			return nil, err
		}
	}
	own.MTU = u.MTU
	own.In, own.Name, own.Kind, own.Alias = netops.Container, in.Key.IfName, u.Kind, in.Label
	own.Parent = master.Name
	if own.Parent != "" {
		own.ParentIn = u.place()
	}
	res := in.Result(u.Net.DNS, []*roles.ResultInterface{{Name: own.Name, Mac: mac, Sandbox: in.Netns}}, 0)
	w := &Desired{Result: res, MAC: mac}
	w.Spec.Add(&own)
	if in.Prev != nil && mac != "" {
		w.Spec.Add(&netops.Link{In: own.In, Name: own.Name, MAC: mac}) // ipvlan shares its master's MAC and cannot be created with one
	}
	return w, Container{MTU: cmp.Or(u.MTU, master.MTU)}.AddTo(&w.Spec, in, res)
}

// Orphans returns the container's interface, found by name, kind and label.
func (u *Upper) Orphans(in *Input) netops.Spec { return OrphansInContainer(in, u.Kind) }

// Status fails if the kernel lacks the kind of link, or if the master is absent. It does
// not look for a master in a container, because STATUS names no container.
func (u *Upper) Status(ctx context.Context, h *roles.Host) error {
	if err := KindStatus(ctx, h, u.Kind); err != nil || u.InContainer {
		return err
	}
	m, err := u.readMaster(ctx, h, nil)
	if err == nil {
		err = u.fits(m)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}
