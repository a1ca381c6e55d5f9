package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// leastMTU6 is the smallest MTU with which a link has IPv6 (RFC 8200).
const leastMTU6 = 1280

// deviceAlias is the alias of an overlay's tunnel device. It identifies the
// device if its name is unknown.
const deviceAlias = "cnibox overlay"

// ensureVTEP makes the device match v and returns its resulting state. It changes
// an existing device in place if the kernel allows that.
func (o *Kernel) ensureVTEP(ctx context.Context, v *VTEP) (st rtnl.Link, warnings []error, err error) {
	have, err := o.findVTEP(ctx, v)
	if err != nil {
		return st, nil, err
	}
	if _, err := o.parentOf(ctx, v); err != nil {
		return st, nil, err
	}
	if have != nil && !v.matches(have) {
		if err := o.deleteVTEP(ctx, have); err != nil {
			return st, nil, err
		}
	}
	if err := o.makeVTEP(ctx, v); err != nil {
		return st, nil, err
	}
	if have, err = o.findVTEP(ctx, v); err == nil && have == nil {
		err = errLinkGone
	}
	if err != nil {
		return st, nil, err
	}
	// Set the sysctls before the device is up, because it then requests and
	// configures addresses.
	warnings = o.disableAutoconfiguration(ctx, v.Name)
	if v.isWireGuard() {
		if err := o.setKeys(ctx, v, have.Index); err != nil {
			return st, warnings, err
		}
	}
	settings := o.settingsOf(v, have)
	if err := o.ensure(ctx, settings); err != nil {
		return st, warnings, v.explain(err)
	}
	if have.MTU < leastMTU6 { // IPv6 has begun anew on the device, with a link-local address
		warnings = o.disableAutoconfiguration(ctx, v.Name)
	}
	if err := o.addressVTEP(ctx, v); err != nil {
		return st, warnings, err
	}
	st, err = o.verifyVTEP(ctx, v, settings)
	return st, warnings, err
}

// link returns the device as it is made: down, and without an alias, because the name or the VNI may belong
// to another program's device.
func (v *VTEP) link() *netops.Link {
	l := &netops.Link{In: netops.Host, Shared: true, Name: v.Name, Kind: v.kind(), MAC: v.MAC, MTU: v.MTU}
	if !v.isWireGuard() {
		l.Parent, l.VNI = v.Parent, int(v.VNI)
		l.VXLAN = &netops.VXLAN{Port: nlconn.BigEndian16(v.Port), Local: v.Local, Learning: v.Learning, GBP: nlconn.Flag(v.GBP)}
	}
	return l
}

// settingsOf returns the settings of the device have. When the MAC changes, the kernel deletes permanent
// neighbours, which the next dump shows. A bridge or another master would receive the packets from the tunnel.
func (o *Kernel) settingsOf(v *VTEP, have *rtnl.Link) *netops.Link {
	l := &netops.Link{
		In: netops.Host, Shared: true, Name: v.Name, MAC: v.MAC, MTU: v.MTU, Up: true, ARP: !v.isWireGuard(), Unset: &netops.Unset{Master: true},
		TxChecksum: v.TxChecksum,
	}
	// Keep an alias that another program set before the device was taken over.
	if alias := o.aliasOf(have.Kind); have.Alias == "" || have.Alias != alias && have.Index == o.labelled {
		l.Alias = alias
	}
	return l
}

// ensure makes objects of the overlay's device.
func (o *Kernel) ensure(ctx context.Context, objects ...netops.Object) error {
	plan, err := o.net.Plan(ctx, netops.Spec{Objects: objects}, nil)
	if err != nil {
		return err
	}
	return o.change(ctx, plan.Changes...)
}

// change makes changes of the overlay's devices.
func (o *Kernel) change(ctx context.Context, changes ...netops.Change) error {
	if err := o.net.Apply(ctx, netops.Plan{Changes: changes}, nil); err != nil {
		return err
	}
	for _, c := range changes {
		o.countDevice(func() string {
			if l, ok := c.Do.Object.(*netops.Link); ok && c.Do.Verb == netops.VerbAdd {
				return fmt.Sprintf("add link %q", l.Name) // the log needs no settings of a new device
			}
			return fmt.Sprintf("%s %s", c.Do.Verb, c.Do.Object)
		})
	}
	return nil
}

// countDevice counts a change of the device for Report.Repaired, unless the spec has another device.
func (o *Kernel) countDevice(what func() string) {
	if !o.newDevice {
		o.countRepair("device", what)
	}
}

// parentOf returns the device's lower link. WireGuard has none: the routes choose
// the link of each packet.
func (o *Kernel) parentOf(ctx context.Context, v *VTEP) (*rtnl.Link, error) {
	if v.isWireGuard() {
		return &rtnl.Link{}, nil
	}
	l, err := o.conn.Link(ctx, v.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent of %q: %w", v.Name, err)
	}
	return l, nil
}

// findVTEP reads the device with the wanted name. It returns nil if the device is
// absent.
func (o *Kernel) findVTEP(ctx context.Context, v *VTEP) (*rtnl.Link, error) {
	have, err := o.conn.FindLink(ctx, v.Name)
	if have != nil && have.Kind != v.kind() {
		err = fmt.Errorf("link %q: %w: it is not of kind %q; rename it, or choose another VNI", v.Name, nlconn.ErrConflict, v.kind())
	}
	return have, err
}

// vteps reads all VXLAN and WireGuard devices.
func (o *Kernel) vteps(ctx context.Context) ([]*rtnl.Link, error) {
	all, err := o.conn.Links(ctx)
	return slices.DeleteFunc(all, func(l *rtnl.Link) bool { return !isTunnel(l) }), err
}

// makeVTEP makes the device, or changes the tunnel of one that matches.
func (o *Kernel) makeVTEP(ctx context.Context, v *VTEP) error {
	err := o.ensure(ctx, v.link())
	if errors.Is(err, nlconn.ErrExists) {
		if err = o.vniTaken(ctx, v, err); err == nil {
			err = o.ensure(ctx, v.link())
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) && v.isWireGuard() {
		return fmt.Errorf("%w; the kernel needs CONFIG_WIREGUARD (Linux 5.6)", err)
	}
	return v.explain(err)
}

// explain adds the settings that an error of the kernel is about.
func (v *VTEP) explain(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: UDP port %d is used by another program; choose another listen port", err, v.Port)
	case errors.Is(err, unix.EOPNOTSUPP) && v.TxChecksum != "":
		return fmt.Errorf("%w: leave out -vxlan-tx-checksum-offload and Backend.TxChecksumOffload on this kernel", err)
	case errors.Is(err, nlconn.ErrInvalid) && !v.isWireGuard():
		return fmt.Errorf("%w: is the MTU of %q large enough?", err, v.Parent)
	}
	return err
}

// vniTaken returns an error with the name of the device that has the wanted VNI
// and port. If that device has the overlay's alias, vniTaken deletes it and
// returns nil: it was renamed, or is from a former configuration.
func (o *Kernel) vniTaken(ctx context.Context, v *VTEP, err error) error {
	all, listErr := o.vteps(ctx)
	for _, other := range all {
		if other.VNI == v.VNI && uint16(other.VXLAN.Port) == v.Port && other.Name != v.Name {
			if other.Alias == deviceAlias {
				return o.deleteVTEP(ctx, other)
			}
			return fmt.Errorf("VNI %d on UDP port %d is held by link %q: %w; choose another VNI or port, or delete that link", v.VNI, v.Port, other.Name, nlconn.ErrExists)
		}
	}
	return errors.Join(err, listErr)
}

// aliasOf returns the alias of the overlay's devices of a kind. A WireGuard device has
// no address that shows its family, so the alias has it.
func (o *Kernel) aliasOf(kind string) string {
	switch {
	case kind != rtnl.KindWireGuard:
		return deviceAlias
	case o.family == unix.AF_INET6:
		return deviceAlias + " IPv6"
	}
	return deviceAlias + " IPv4"
}

// disableAutoconfiguration prevents the device from configuring addresses automatically. If
// /proc/sys is read-only, the device works with a link-local address.
func (o *Kernel) disableAutoconfiguration(ctx context.Context, name string) (warnings []error) {
	for key, value := range map[string]string{"accept_ra": "0", "addr_gen_mode": netops.AddrGenNone} {
		if err := o.setSysctl(ctx, "net/ipv6/conf/"+name+"/"+key, value); err != nil {
			warnings = append(warnings, err)
		}
	}
	return warnings
}

// setSysctl writes a sysctl if its value differs. A missing one means that IPv6 is disabled. One that
// cannot be written is an error, which becomes a warning.
func (o *Kernel) setSysctl(ctx context.Context, key, value string) error {
	err := o.net.Ensure(ctx, netops.Spec{Objects: []netops.Object{&netops.Sysctl{In: netops.Host, Shared: true, Key: key, Value: value}}}, nil)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	return err
}

// addressVTEP adds the device's address, if it has one, before it removes link-local ones, and others in
// the network, because the host's connections to pods need a source address.
func (o *Kernel) addressVTEP(ctx context.Context, v *VTEP) error {
	have, err := o.net.Addresses(ctx, nil, v.Name)
	if err != nil {
		return err
	}
	var changes []netops.Change
	add := func(verb netops.Verb, p netip.Prefix) {
		changes = append(changes, netops.Change{Do: netops.Step{Verb: verb, Object: &netops.Addr{In: netops.Host, Shared: true, Link: v.Name, Address: p}}})
	}
	if v.Address.IsValid() && !slices.Contains(have, v.Address) {
		add(netops.VerbAdd, v.Address)
	}
	for _, p := range have {
		if p != v.Address && (v.Network.IsValid() && v.Network.Contains(p.Addr()) || p.Addr().Is6() && p.Addr().IsLinkLocalUnicast()) {
			add(netops.VerbDel, p)
		}
	}
	return o.change(ctx, changes...)
}

// verifyVTEP reads the device and its parent after the device is up. Programs
// that configure devices (systemd-udevd's MACAddressPolicy) may have changed it.
func (o *Kernel) verifyVTEP(ctx context.Context, v *VTEP, settings *netops.Link) (rtnl.Link, error) {
	o.mark = o.monitor.mark()
	have, err := o.findVTEP(ctx, v)
	if err == nil && have == nil {
		err = errLinkGone
	}
	if err != nil {
		return rtnl.Link{}, err
	}
	o.parent, err = o.parentOf(ctx, v)
	if err != nil {
		return rtnl.Link{}, err
	}
	if have.Alias == o.aliasOf(have.Kind) {
		o.labelled = have.Index
	}
	if !v.isWireGuard() && have.Peer != o.parent.Index {
		return *have, fmt.Errorf("link %q: %w: it is not on %q", v.Name, nlconn.ErrConflict, v.Parent)
	}
	diffs, err := o.net.Verify(ctx, netops.Spec{Objects: []netops.Object{settings}}, nil)
	for _, d := range diffs {
		err = errors.Join(err, fmt.Errorf("%s instead of %s", d.Have, d.Want))
	}
	if len(diffs) > 0 {
		err = fmt.Errorf("link %q: %w: another program changes it: %w", v.Name, nlconn.ErrConflict, err)
	}
	return *have, err
}

// deleteVTEP deletes a device. It deletes the routes and then the nexthops before
// the device, because the kernel takes long to delete them with the device.
func (o *Kernel) deleteVTEP(ctx context.Context, have *rtnl.Link) error {
	if err := o.removePeers(ctx, have.Index); err != nil {
		return err
	}
	return o.deleteLink(ctx, have)
}

func (o *Kernel) deleteLink(ctx context.Context, have *rtnl.Link) error {
	err := o.change(ctx, netops.Change{Do: netops.Step{Verb: netops.VerbDel, Object: &netops.Link{In: netops.Host, Shared: true, Name: have.Name, Kind: have.Kind}}})
	if nlconn.IsAbsent(err) {
		return nil
	}
	return err
}

func (v *VTEP) isWireGuard() bool { return v.WireGuard.PrivateKey != Secret{} }

func (v *VTEP) kind() string {
	if v.isWireGuard() {
		return rtnl.KindWireGuard
	}
	return rtnl.KindVXLAN
}

// matches reports whether the kernel can change the existing device to match v. It
// cannot change the VNI, the port, GBP and the address family. It does not change a device with
// another use: a multicast group, a default destination, metadata mode, or notifications of misses.
func (v *VTEP) matches(have *rtnl.Link) bool {
	x := &have.VXLAN
	foreign := x.Group.IsValid() || x.Metadata || x.Proxy || x.Resolve || x.L2Misses || x.L3Misses
	return v.isWireGuard() || have.VNI == v.VNI && uint16(x.Port) == v.Port && bool(x.GBP) == v.GBP && !foreign &&
		(!x.Local.IsValid() && v.Local.Is4() || x.Local.Is4() == v.Local.Is4() && x.Local.IsValid())
}

// isTunnel reports whether a link has the kind of the overlay's devices.
func isTunnel(l *rtnl.Link) bool { return l.Kind == rtnl.KindVXLAN || l.Kind == rtnl.KindWireGuard }

// validate checks values that the kernel would accept without an error.
func (v *VTEP) validate(is6 bool) error {
	errs := []error{rtnl.CheckName(v.Name), rtnl.CheckMTU(v.MTU)}
	if v.isWireGuard() {
		if v.Port == 0 || !v.Network.IsValid() {
			errs = append(errs, fmt.Errorf("port %d, network %q: %w: a WireGuard device needs both", v.Port, v.Network, nlconn.ErrInvalid))
		}
	} else {
		errs = append(errs, v.validateVXLAN(is6)...)
	}
	if a := v.Address; !a.IsValid() || a.Addr().Is6() != is6 || !a.IsSingleIP() {
		errs = append(errs, fmt.Errorf("device address %q: %w: it is one address", v.Address, nlconn.ErrInvalid))
	}
	if v.Network.IsValid() && v.Network.Addr().Is6() != is6 {
		errs = append(errs, fmt.Errorf("pod network %q: %w: it is of another address family", v.Network, nlconn.ErrInvalid))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tunnel device: %w", err)
	}
	return nil
}

func (v *VTEP) validateVXLAN(is6 bool) []error {
	errs := []error{rtnl.CheckName(v.Parent), rtnl.CheckMAC(v.MAC)}
	if v.Port == 0 {
		errs = append(errs, fmt.Errorf("UDP port 0: %w", nlconn.ErrInvalid))
	}
	if v.VNI == 0 || v.VNI >= 1<<24 {
		errs = append(errs, fmt.Errorf("VNI %d: %w: it is 1 to %d", v.VNI, nlconn.ErrInvalid, 1<<24-1))
	}
	if !v.Local.IsValid() || v.Local.Is6() != is6 || v.Local.IsUnspecified() || v.Local.IsMulticast() {
		errs = append(errs, fmt.Errorf("local address %q: %w", v.Local, nlconn.ErrInvalid))
	}
	return errs
}
