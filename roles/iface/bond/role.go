package bond

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// kind is the role's name and the kernel's kind of link.
const kind = "bond"

// Role is the bond role's entry in the table.
func Role() roles.Role {
	return attach.InterfaceRole(roles.Role{
		Names:   []string{kind},
		Summary: "a bond of interfaces of the host or the container",
	}, func(c *Conf) attach.SpecBuilder { return &role{conf: c} })
}

// role implements attach.SpecBuilder for one configuration.
type role struct{ conf *Conf }

// Shared is empty: an interface has one bond.
func (r *role) Shared() []string { return nil }

// link is a link as Observe found it.
type link struct {
	Name, MAC string
	MTU       int
	// Device is set for a link of the host.
	Device attach.Device
	// Card is the interface of the physical function if the link is a virtual one, and CardMTU its MTU.
	Card    string
	CardMTU int
}

// NeedsNetnsLock marks the role as an attach.NetnsLocker: of two bonds of a container
// with the same link, the second must see that the first has it.
func (r *role) NeedsNetnsLock() {}

// Observe reads the links. A repeated call in one ADD keeps the first result: the
// links are in the bond when the IPAM plugin runs. CHECK needs only their names.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if in.Observed != nil {
		return nil
	}
	links := make([]link, len(r.conf.Links))
	for i, l := range r.conf.Links {
		links[i].Name = l.Name
		if in.Prev != nil || r.conf.LinksInContainer && container == nil {
			continue
		}
		if l.Name == in.Key.IfName {
			return &roles.ConfError{Path: nameOf(i), Reason: fmt.Sprintf("%q is the name of the bond's own interface (CNI_IFNAME): bond another interface, or give the bond another name", l.Name)}
		}
		var err error
		if r.conf.LinksInContainer {
			links[i], err = inContainer(ctx, h, container, l.Name)
		} else {
			links[i], err = onHost(ctx, h, l.Name)
		}
		if err == nil {
			err = links[i].readCard(ctx, h)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(i), err)
		}
	}
	in.Observed = links
	return nil
}

// readCard finds the card of a virtual function by its MAC, as bond-cni does: the card drops frames that are larger than its own MTU.
func (l *link) readCard(ctx context.Context, h *roles.Host) error {
	card, err := h.Net.CardOf(ctx, l.MAC)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	l.Card, l.CardMTU = card.Name, card.MTU
	return err
}

// inContainer reads a link in the container. A link of a bridge or of another bond is refused: that one would lose it.
func inContainer(ctx context.Context, h *roles.Host, container *netops.Namespace, name string) (link, error) {
	l, err := h.Net.Link(ctx, container, name)
	switch {
	case errors.Is(err, netops.ErrNotExist):
		return link{}, fmt.Errorf("in the container: %w: attach the network that makes it before this one", err)
	case err == nil && l.Master != "":
		err = fmt.Errorf("interface %q belongs to %q: %w", name, l.Master, netops.ErrConflict)
	}
	return link{Name: l.Name, MAC: l.MAC, MTU: l.MTU}, err
}

// onHost reads a link of the host. The error names the attachment that has the link, if one has.
func onHost(ctx context.Context, h *roles.Host, name string) (link, error) {
	l, err := h.Net.Link(ctx, nil, name)
	if errors.Is(err, netops.ErrNotExist) {
		if holder := attach.DeviceHolder(ctx, h, name, ""); holder != nil {
			return link{}, holder
		}
		return link{}, fmt.Errorf("on the host: %w: for an interface of the container set linksInContainer", err)
	}
	if err != nil {
		return link{}, err
	}
	d, err := attach.DeviceOf(l)
	if err == nil {
		err = d.CheckReturned(ctx, h)
	}
	return link{Name: l.Name, MAC: l.MAC, MTU: l.MTU, Device: d}, err
}

// Build computes the spec and the result of one attachment. The bond gets the MAC of
// its first link from the kernel.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	links, ok := in.Observed.([]link)
	if !ok || len(links) == 0 {
		return nil, errors.New("build the spec: Observe was not called")
	}
	own := &netops.Link{In: netops.Container, Name: in.Key.IfName, Kind: kind, Mode: r.conf.Mode, MTU: r.conf.MTU, Alias: in.Label, Bond: r.conf.bond()}
	mac := links[0].MAC
	if in.Prev != nil {
		mac = attach.ContainerMAC(in.Prev, own.Name)
	}
	res := in.Result(r.conf.DNS, []*roles.ResultInterface{{Name: own.Name, Mac: mac, Sandbox: in.Netns}}, 0)
	w := &attach.Desired{Result: res, MAC: mac}
	if in.Prev != nil {
		r.check(&w.Spec, own, links, mac)
	} else if err := r.bond(w, in, own, links); err != nil {
		return nil, err
	}
	return w, attach.Container{MTU: r.conf.MTU}.AddTo(&w.Spec, in, res)
}

// bond adds what ADD makes: the links in the container, down and with MACs that differ, then the bond, then its links. The kernel sets a link
// up that joins a bond.
func (r *role) bond(w *attach.Desired, in *attach.Input, own *netops.Link, links []link) error {
	var macs []string
	for i, l := range links {
		if l.MTU != 0 && r.conf.MTU > l.MTU {
			return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf("%d is more than the %d of %q: set mtu to %d or less, or the interface's MTU to more", r.conf.MTU, l.MTU, l.Name, l.MTU)}
		}
		if l.CardMTU != 0 && r.conf.MTU > l.CardMTU {
			return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf("%d is more than the %d of %q, whose virtual function %q is: set mtu to %d or less, or the card's MTU to more",
				r.conf.MTU, l.CardMTU, l.Card, l.Name, l.CardMTU)}
		}
		if r.conf.LinksInContainer {
			w.Spec.Add(&netops.Link{In: netops.Container, Name: l.Name, Down: true})
		} else {
			w.Spec.Add(&netops.Move{From: netops.Host, Name: l.Name, To: netops.Container, As: l.Name, Alias: attachment.DeviceAlias(in.Key, l.Name)})
			w.Claims = append(w.Claims, l.Device.Claims()...)
		}
		if l.MAC != "" && slices.Contains(macs, l.MAC) {
			w.Spec.Add(&netops.Link{In: netops.Container, Name: l.Name, MAC: attachment.MAC(in.Key, fmt.Sprintf("link %d", i))})
		}
		macs = append(macs, l.MAC)
	}
	w.Spec.Add(own)
	for _, l := range links {
		w.Spec.Add(&netops.Link{In: netops.Container, Name: l.Name, Master: own.Name})
	}
	return nil
}

// check adds what CHECK compares. The state of a link is an object of its own: 'cnibox repair' cannot set a link up before it joins the bond.
func (r *role) check(spec *netops.Spec, own *netops.Link, links []link, mac string) {
	if r.conf.Mode != activeBackup || r.conf.FailOverMAC != 1 { // else it is that of the link that is active now
		own.MAC = mac
	}
	spec.Add(own)
	for _, l := range links {
		spec.Add(&netops.Link{In: netops.Container, Name: l.Name, Master: own.Name}, &netops.Link{In: netops.Container, Name: l.Name, Up: true})
	}
}

// Orphans is what an attachment without a record can have left: the bond, and the
// host's links in the container or back on the host, identified by their aliases. It
// is removed from its end.
func (r *role) Orphans(in *attach.Input) netops.Spec {
	var spec netops.Spec
	for _, l := range r.conf.Links {
		if roles.LinkName(l.Name) == nil && !r.conf.LinksInContainer {
			spec.Add(&netops.Move{From: netops.Host, Name: l.Name, To: netops.Container, As: l.Name, Alias: in.Label})
		}
	}
	spec.Objects = append(spec.Objects, attach.OrphansInContainer(in, kind).Objects...)
	return spec
}

// Status reports whether the kernel has bonds, and whether the links are on the host or
// have been moved into a container, which is not an error of the node.
func (r *role) Status(ctx context.Context, h *roles.Host) error {
	if err := attach.KindStatus(ctx, h, kind); err != nil || r.conf.LinksInContainer {
		return err
	}
	for i, l := range r.conf.Links {
		_, err := h.Net.Link(ctx, nil, l.Name)
		if err == nil || errors.Is(attach.DeviceHolder(ctx, h, l.Name, ""), store.ErrTaken) {
			continue
		}
		return fmt.Errorf("%w: %s: %w", roles.ErrNotAvailable, nameOf(i), err)
	}
	return nil
}
