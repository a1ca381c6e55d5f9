package tuning

import (
	"cmp"
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Role is the tuning role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"tuning"},
		Summary:      "sysctls, MAC, MTU, modes and queue length of the container's interface",
		Reference:    "v1.9.1",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants tells whether any key asks for a change.
func (r *role) Wants() bool {
	w, err := r.conf.wanted(roles.Args{})
	return err != nil || w != (wanted{}) || len(r.conf.Sysctl) > 0 || len(r.conf.Args.CNI.Sysctl) > 0
}

// WantedByArgs tells whether CNI_ARGS name a hardware address.
func (r *role) WantedByArgs(args roles.Args) bool { return args.Get("MAC") != "" }

// Shared is nothing: the interface is the container's.
func (r *role) Shared() []string { return nil }

// observed is what Build needs to know of the kernel.
type observed struct {
	// HostEnd is the other end of the interface, if that is a veth whose other
	// end is the host's.
	HostEnd string
}

// Observe reads the allowlist, for ADD, and the interface's other end.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	if in.Prev == nil && len(r.conf.Sysctl)+len(r.conf.Args.CNI.Sysctl) > 0 {
		allowlist, found, err := readAllowlist(allowlistFile)
		if err == nil && found {
			err = r.conf.checkAllowed(allowlist)
		}
		if err != nil {
			return err
		}
	}
	var o observed
	if w, _ := r.conf.wanted(in.Args); w.mtu != 0 && container != nil {
		end, err := h.Net.HostEnd(ctx, container, in.Key.IfName)
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return err
		}
		o.HostEnd = end.Name
	}
	in.Observed = o
	return nil
}

// Build sets the interface first: a new MTU makes some settings anew
// (net.ipv6.conf.*.mtu). Each attribute is a change of its own, so that one that
// the kernel refuses leaves no other half done. CHECK takes from prevResult what
// it tells: a later plugin may have tuned the interface too.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	w, err := r.conf.wanted(in.Args)
	if err != nil {
		return nil, err
	}
	settings, err := r.conf.settings(in.Key.IfName)
	if err != nil {
		return nil, err
	}
	o, _ := in.Observed.(observed)
	if in.Prev != nil {
		w.accept(in.Prev, in.Key.IfName)
	} else if err := w.fits(in.Chained, in.Key.IfName); err != nil {
		return nil, err
	}
	out := &attach.Desired{Result: w.result(in.Chained, in.Key.IfName, o.HostEnd), MAC: w.mac}
	for _, l := range w.links(in.Key.IfName, o.HostEnd) {
		out.Spec.Add(l)
	}
	for _, s := range settings {
		out.Spec.Add(&netops.Sysctl{In: netops.Container, Key: s.key(in.Key.IfName), Value: s.Value})
	}
	return out, nil
}

// accept replaces what was asked for by what prevResult tells.
func (w *wanted) accept(prev *roles.Result, ifName string) {
	if w.mac != "" {
		w.mac = cmp.Or(attach.ContainerMAC(prev, ifName), w.mac)
	}
	if w.mtu != 0 {
		w.mtu = cmp.Or(attach.ContainerMTU(prev, ifName), w.mtu)
	}
}

// fits makes sure that the interface keeps its IPv6 addresses: below IPv6's
// least MTU the kernel takes them away.
func (w *wanted) fits(prev *roles.Result, ifName string) error {
	if w.mtu == 0 || w.mtu >= minMTU6 {
		return nil
	}
	part, err := attach.IPAMPart(prev, ifName)
	if err != nil {
		return nil // without addresses
	}
	ips, err := attach.Addresses(part)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		if ip.Address.Addr().Is6() {
			return &roles.ConfError{Path: "mtu", Reason: "is less than the 1280 of IPv6 (RFC 8200, section 5), and the interface has " + ip.Address.String()}
		}
	}
	return nil
}

// links are the changes of the interface and of its other end.
func (w *wanted) links(name, hostEnd string) []*netops.Link {
	var all []*netops.Link
	own := func() *netops.Link {
		l := &netops.Link{In: netops.Container, Name: name}
		all = append(all, l)
		return l
	}
	if w.mac != "" {
		own().MAC = w.mac
	}
	if w.mtu != 0 {
		own().MTU = w.mtu
		if hostEnd != "" {
			all = append(all, &netops.Link{In: netops.Host, Name: hostEnd, MTU: w.mtu})
		}
	}
	if w.promisc != nil || w.allMulti != nil {
		w.modes(own())
	}
	if w.txQLen != nil {
		n := uint32(*w.txQLen)
		own().TxQLen = &n
	}
	return all
}

// modes turns reception modes on and off.
func (w *wanted) modes(l *netops.Link) {
	var off netops.Unset
	if w.promisc != nil {
		l.Promisc, off.Promisc = *w.promisc, !*w.promisc
	}
	if w.allMulti != nil {
		l.AllMulti, off.AllMulti = *w.allMulti, !*w.allMulti
	}
	if off != (netops.Unset{}) {
		l.Unset = &off
	}
}

// result is prevResult with the interface's MAC and MTU as they are now.
func (w *wanted) result(prev *roles.Result, ifName, hostEnd string) *roles.Result {
	if prev == nil || w.mac == "" && w.mtu == 0 {
		return prev
	}
	out := *prev
	out.Interfaces = nil
	for _, i := range prev.Interfaces {
		var c roles.ResultInterface
		if i != nil {
			c = *i
		}
		if c.Name == ifName && c.Sandbox != "" {
			c.Mac, c.Mtu = cmp.Or(w.mac, c.Mac), cmp.Or(w.mtu, c.Mtu)
		}
		if c.Name == hostEnd && c.Sandbox == "" {
			c.Mtu = cmp.Or(w.mtu, c.Mtu)
		}
		out.Interfaces = append(out.Interfaces, &c)
	}
	return &out
}
