package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Upper is the common part of the roles whose interface has a master, another link
// below it: macvlan, ipvlan and vlan. A role embeds it and adds Build. The interface is
// made in the container's namespace, so an attachment has no host link, and its DEL does
// not need the master.
type Upper struct {
	// Kind is the kernel's kind of link, which is the role's name too.
	Kind string
	// Net holds the keys that every configuration has.
	Net roles.NetConf
	// Master is the link below; empty is the device of the default route.
	Master string
	// MTU is at most the master's, which is what 0 means.
	MTU int
	// InContainer means that the master is in the container's namespace.
	InContainer bool
}

// MasterLink is what Observe reads of a master.
type MasterLink struct {
	Name, MAC string
	MTU       int
}

// Shared is empty: the master is not ours and stays unchanged.
func (u *Upper) Shared() []string { return nil }

// Validate reports the faults of the shared keys.
func (u *Upper) Validate(f *roles.Faults) {
	if u.Master != "" {
		if err := roles.LinkName(u.Master); err != nil {
			f.Addf("master", "%v", err)
		}
	}
	if u.MTU < 0 {
		f.Addf("mtu", "%d is negative: use 0 for the master's, or up to that", u.MTU)
	}
}

// Observe reads the master, once in an ADD: the default route may move between
// two stages. CHECK reads nothing: it may have moved since, and the interface is
// there only as long as its master is.
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
		return &roles.ConfError{Path: "master", Reason: "is not set, and without a container there is no default route in it"}
	}
	var err error
	in.Observed, err = u.observe(ctx, h, ns)
	return err
}

// observe reads the master in a namespace, the host's for nil.
func (u *Upper) observe(ctx context.Context, h *roles.Host, ns *netops.Namespace) (MasterLink, error) {
	name, err := u.Master, error(nil)
	if name == "" {
		if name, err = h.Net.DefaultRouteLink(ctx, ns); err != nil {
			return MasterLink{}, fmt.Errorf("master is not set, and cannot be found by the default route of the %s: %w", u.place(), err)
		}
	}
	l, err := h.Net.Link(ctx, ns, name)
	if err != nil {
		return MasterLink{}, fmt.Errorf("master in the %s: %w", u.place(), err)
	}
	return MasterLink{Name: l.Name, MAC: l.MAC, MTU: l.MTU}, nil
}

// fits returns an error if the MTU is larger than the master's. A master whose MTU is
// not known, because the container is not, fits.
func (u *Upper) fits(m MasterLink) error {
	if u.MTU <= m.MTU || m.MTU == 0 {
		return nil
	}
	return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf("%d is more than the %d of the master %q", u.MTU, m.MTU, m.Name)}
}

// place is the master's namespace.
func (u *Upper) place() netops.Place {
	if u.InContainer {
		return netops.Container
	}
	return netops.Host
}

// Link adds the interface, with the attributes of its kind of link, and the
// container's side. Without a MAC it has the master's. CHECK compares the MTU
// only where own has one: a chained plugin may have set another.
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
		own.MTU = u.MTU
	}
	own.In, own.Name, own.Kind, own.Alias = netops.Container, in.Key.IfName, u.Kind, in.Label
	own.Parent = master.Name
	if own.Parent != "" {
		own.ParentIn = u.place()
	}
	res := in.Result(u.Net.DNS, []*roles.ResultInterface{{Name: own.Name, Mac: mac, Sandbox: in.Netns}}, 0)
	w := &Desired{Result: res, MAC: mac}
	w.Spec.Add(&own)
	if in.Prev != nil && mac != "" {
		w.Spec.Add(&netops.Link{In: own.In, Name: own.Name, MAC: mac}) // a kind that shares its master's MAC may not set one
	}
	return w, Container{MTU: cmp.Or(u.MTU, master.MTU)}.AddTo(&w.Spec, in, res)
}

// Orphans is the container's interface, known by name, kind and label.
func (u *Upper) Orphans(in *Input) netops.Spec { return OrphansWithin(in, u.Kind) }

// Status fails if the kernel lacks the kind of link, or the master is absent. A master
// in a container is not looked for: STATUS names no container.
func (u *Upper) Status(ctx context.Context, h *roles.Host) error {
	if err := KindStatus(ctx, h, u.Kind); err != nil || u.InContainer {
		return err
	}
	m, err := u.observe(ctx, h, nil)
	if err == nil {
		err = u.fits(m)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}
