package tuning

import (
	"cmp"
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Role is the tuning role's entry in the table.
func Role() roles.Role {
	return attach.ChainedRole(roles.Role{
		Names:        []string{"tuning"},
		Summary:      "sysctls, MAC, MTU, modes and queue length of the container's interface",
		Reference:    "v1.10.0",
		Capabilities: []string{"mac"},
		Args:         []string{"MAC"},
	}, func(c *Conf) attach.Chained { return &role{conf: c} })
}

// role implements attach.Chained for one configuration.
type role struct{ conf *Conf }

// Wants reports whether a key requests a change.
func (r *role) Wants() bool {
	w, err := r.conf.linkSettings(roles.Args{})
	return err != nil || w != (linkSettings{}) || len(r.conf.Sysctl) > 0 || len(r.conf.Args.CNI.Sysctl) > 0
}

// WantedByArgs reports whether CNI_ARGS contains a MAC address.
func (r *role) WantedByArgs(args roles.Args) bool { return args.Get("MAC") != "" }

// Shared is empty: the interface belongs to the container.
func (r *role) Shared() []string { return nil }

// observed is the kernel state that Build needs.
type observed struct {
	// HostEnd is the host's end of the pair, or "" if the interface is not of a
	// pair with an end on the host.
	HostEnd string
}

// Observe reads the allowlist on ADD, and the host's end of the pair if the MTU
// is to be changed. A MAC for an interface that can have none is an error.
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
	w, _ := r.conf.linkSettings(in.Args)
	if w.mac != "" && container != nil && in.Prev == nil && in.Chained != nil && attach.ContainerMAC(in.Chained, in.Key.IfName) == "" {
		l, err := h.Net.Link(ctx, container, in.Key.IfName)
		if err == nil && l.IsPairEnd() && l.MAC == "" {
			err = r.conf.macRefused(in.Args, l.Name)
		}
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return err
		}
	}
	if w.mtu != 0 && container != nil {
		end, err := h.Net.HostEnd(ctx, container, in.Key.IfName)
		if err != nil && !errors.Is(err, netops.ErrNotExist) {
			return err
		}
		o.HostEnd = end.Name
	}
	in.Observed = o
	return nil
}

// Build changes the interface before the sysctls, because a new MTU resets
// net.ipv6.conf.*.mtu. Each attribute is a separate change: if the kernel
// refuses one, the others are complete or not started. CHECK uses the values of
// prevResult where it has them, because a later plugin may have changed the
// interface too.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	w, err := r.conf.linkSettings(in.Args)
	if err != nil {
		return nil, err
	}
	settings, err := r.conf.mergedSysctls(in.Key.IfName)
	if err != nil {
		return nil, err
	}
	o, _ := in.Observed.(observed)
	if in.Prev != nil {
		w.useResult(in.Prev, in.Key.IfName)
	} else if err := w.checkIPv6MTU(in.Chained, in.Key.IfName); err != nil {
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

// useResult replaces the requested MAC and MTU by those of prevResult.
func (w *linkSettings) useResult(prev *roles.Result, ifName string) {
	if w.mac != "" {
		w.mac = cmp.Or(attach.ContainerMAC(prev, ifName), w.mac)
	}
	if w.mtu != 0 {
		w.mtu = cmp.Or(attach.ContainerMTU(prev, ifName), w.mtu)
	}
}

// checkIPv6MTU reports an MTU below the minimum of IPv6 if the interface has
// IPv6 addresses: the kernel would remove them.
func (w *linkSettings) checkIPv6MTU(prev *roles.Result, ifName string) error {
	if w.mtu == 0 || w.mtu >= minMTU6 {
		return nil
	}
	part, err := attach.IPAMPart(prev, ifName)
	if err != nil {
		return nil // prevResult has no addresses
	}
	ips, err := attach.Addresses(part)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		if ip.Address.Addr().Is6() {
			return &roles.ConfError{Path: "mtu", Reason: "is less than 1280, the minimum MTU of IPv6 (RFC 8200, section 5), and the interface has " + ip.Address.String()}
		}
	}
	return nil
}

// links are the changes of the interface and of the host's end.
func (w *linkSettings) links(name, hostEnd string) []*netops.Link {
	var all []*netops.Link
	add := func() *netops.Link {
		l := &netops.Link{In: netops.Container, Name: name}
		all = append(all, l)
		return l
	}
	if w.mac != "" {
		add().MAC = w.mac
	}
	if w.mtu != 0 {
		add().MTU = w.mtu
		if hostEnd != "" {
			all = append(all, &netops.Link{In: netops.Host, Name: hostEnd, MTU: w.mtu})
		}
	}
	if w.promisc != nil || w.allMulti != nil {
		w.setModes(add())
	}
	if w.txQLen != nil {
		n := uint32(*w.txQLen)
		add().TxQLen = &n
	}
	return all
}

// setModes turns the reception modes on and off.
func (w *linkSettings) setModes(l *netops.Link) {
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

// result is prevResult with the new MAC and MTU of the interface.
func (w *linkSettings) result(prev *roles.Result, ifName, hostEnd string) *roles.Result {
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
