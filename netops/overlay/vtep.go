package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
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
func (o *Kernel) ensureVTEP(ctx context.Context, v *VTEP) (st vtepState, warnings []error, err error) {
	have, err := o.findVTEP(ctx, v)
	if err != nil {
		return st, nil, err
	}
	parent, err := o.parentOf(ctx, v)
	if err != nil {
		return st, nil, err
	}
	if have != nil && !v.matches(have) {
		if err := o.deleteVTEP(ctx, have); err != nil {
			return st, nil, err
		}
		have = nil
	}
	if have == nil {
		if err := o.createVTEP(ctx, v, parent.Index); err != nil {
			return st, nil, err
		}
	}
	if have, err = o.findVTEP(ctx, v); err == nil && have == nil {
		err = errLinkGone
	}
	if err != nil {
		return st, nil, err
	}
	// Set the sysctls before the device is up, because it then requests and
	// configures addresses.
	warnings = o.disableAutoconfiguration(v.Name)
	if v.isWireGuard() {
		if err := o.setKeys(ctx, v, have.Index); err != nil {
			return st, warnings, err
		}
	}
	if err := o.setVTEP(ctx, v, have, parent.Index); err != nil {
		return st, warnings, err
	}
	if have.MTU < leastMTU6 { // IPv6 has begun anew on the device, with a link-local address
		warnings = o.disableAutoconfiguration(v.Name)
	}
	if err := o.addressVTEP(ctx, v, have.Index); err != nil {
		return st, warnings, err
	}
	st, err = o.verifyVTEP(ctx, v)
	return st, warnings, err
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
func (o *Kernel) findVTEP(ctx context.Context, v *VTEP) (*vtepState, error) {
	m := rtnl.LinkQuery(0)
	m.Text(unix.IFLA_IFNAME, v.Name)
	data, err := o.conn.Query(ctx, m)
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, nlconn.Explain(err, fmt.Sprintf("link %q", v.Name))
	}
	st, ok, err := parseVTEP(data)
	if err == nil && (!ok || st.Kind != v.kind()) {
		err = fmt.Errorf("link %q: %w: it is not of kind %q; rename it, or choose another VNI", v.Name, nlconn.ErrConflict, v.kind())
	}
	return &st, err
}

// vteps reads all VXLAN and WireGuard devices.
func (o *Kernel) vteps(ctx context.Context) ([]vtepState, error) {
	var all []vtepState
	err := o.conn.Dump(ctx, rtnl.LinkQuery(0), func() { all = nil }, func(_ uint16, data []byte) error {
		v, ok, err := parseVTEP(data)
		if ok {
			all = append(all, v)
		}
		return err
	})
	return all, nlconn.Explain(err, "list links")
}

// createVTEP makes the device, which is down. setVTEP sets the alias and the
// flags later, because the name or the VNI may belong to another program's
// device.
func (o *Kernel) createVTEP(ctx context.Context, v *VTEP, parent int) error {
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, 0)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	m.Text(unix.IFLA_IFNAME, v.Name)
	rtnl.AddHardware(&m.Body, v.MAC, v.MTU)
	if v.isWireGuard() {
		m.Nest(unix.IFLA_LINKINFO, func() { m.Bytes(nl.IFLA_INFO_KIND, []byte(rtnl.KindWireGuard)) })
	} else {
		v.addTunnel(&m.Body, parent, func() {
			m.Net16(nl.IFLA_VXLAN_PORT, v.port())
			if v.GBP {
				m.Bytes(nl.IFLA_VXLAN_GBP, nil)
			}
		})
	}
	err := o.request(ctx, fmt.Sprintf("add link %q", v.Name), m)
	if errors.Is(err, unix.EEXIST) {
		if err = o.vniTaken(ctx, v, err); err == nil {
			err = o.request(ctx, fmt.Sprintf("add link %q", v.Name), m)
		}
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && v.isWireGuard():
		return fmt.Errorf("%w: the kernel needs CONFIG_WIREGUARD (Linux 5.6); see what 'modprobe wireguard' says", err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: see what 'modprobe vxlan' says", err)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE):
		return fmt.Errorf("%w: VNI %d, MTU %d over %q", err, v.VNI, v.MTU, v.Parent)
	}
	return err
}

// vniTaken returns an error with the name of the device that has the wanted VNI
// and port. If that device has the overlay's alias, vniTaken deletes it and
// returns nil: it was renamed, or is from a former configuration.
func (o *Kernel) vniTaken(ctx context.Context, v *VTEP, err error) error {
	all, listErr := o.vteps(ctx)
	for _, other := range all {
		if other.vni == v.VNI && other.port == v.port() && other.Name != v.Name {
			if other.Alias == deviceAlias {
				return o.deleteVTEP(ctx, &other)
			}
			return fmt.Errorf("VNI %d on UDP port %d is held by link %q: %w; choose another VNI or port, or delete that link", v.VNI, v.port(), other.Name, nlconn.ErrExists)
		}
	}
	return errors.Join(err, listErr)
}

// addTunnel appends IFLA_LINKINFO with the attributes that can also be changed later,
// and those that more appends. The kernel requires the VNI in every request.
func (v *VTEP) addTunnel(b *nlconn.Body, parent int, more func()) {
	local := uint16(nl.IFLA_VXLAN_LOCAL)
	if v.Local.Is6() {
		local = nl.IFLA_VXLAN_LOCAL6
	}
	b.Nest(unix.IFLA_LINKINFO, func() {
		b.Bytes(nl.IFLA_INFO_KIND, []byte(rtnl.KindVXLAN))
		b.Nest(nl.IFLA_INFO_DATA, func() {
			b.Uint32(nl.IFLA_VXLAN_ID, v.VNI)
			b.Uint32(nl.IFLA_VXLAN_LINK, uint32(parent))
			b.Bytes(local, v.Local.AsSlice())
			b.Bool(nl.IFLA_VXLAN_LEARNING, v.Learning)
			more()
		})
	})
}

// setVTEP changes what differs. The alias and the flags are last. When the MAC
// changes, the kernel deletes permanent neighbours, which the next dump shows.
func (o *Kernel) setVTEP(ctx context.Context, v *VTEP, have *vtepState, parent int) error {
	if !v.isWireGuard() && (have.parent != parent || have.local != v.Local || have.learning != v.Learning) {
		if err := o.setLink(ctx, v, have.Index, "tunnel", func(b *nlconn.Body) { v.addTunnel(b, parent, func() {}) }); err != nil {
			return err
		}
	}
	if v.MAC != "" && !rtnl.SameMAC(v.MAC, have.MAC) {
		if err := o.setLink(ctx, v, have.Index, "address "+v.MAC, func(b *nlconn.Body) { rtnl.AddHardware(b, v.MAC, 0) }); err != nil {
			return err
		}
	}
	if v.MTU != 0 && v.MTU != have.MTU {
		err := o.setLink(ctx, v, have.Index, fmt.Sprintf("mtu %d", v.MTU), func(b *nlconn.Body) { rtnl.AddHardware(b, "", v.MTU) })
		if err != nil {
			return fmt.Errorf("%w (is %q large enough?)", err, v.Parent)
		}
	}
	// Keep an alias that another program set before the device was taken over.
	alias := o.aliasOf(have.Kind)
	if have.Alias == "" || have.Alias != alias && have.Index == o.labelled {
		if err := o.setLink(ctx, v, have.Index, "alias", func(b *nlconn.Body) { b.Bytes(unix.IFLA_IFALIAS, []byte(alias)) }); err != nil {
			return err
		}
	}
	if have.Master != 0 { // a bridge would receive the packets from the tunnel
		if err := o.setLink(ctx, v, have.Index, "nomaster", func(b *nlconn.Body) { b.Uint32(unix.IFLA_MASTER, 0) }); err != nil {
			return err
		}
	}
	noARP := have.IsNoARP() && !v.isWireGuard()
	if have.IsUp() && !noARP {
		return nil
	}
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ifi.Index = int32(have.Index)
	rtnl.SetFlag(ifi, true, false, unix.IFF_UP)
	rtnl.SetFlag(ifi, false, noARP, unix.IFF_NOARP)
	err := o.request(ctx, fmt.Sprintf("set link %q up", v.Name), nlconn.Message{Kind: unix.RTM_NEWLINK, Header: ifi})
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%w: UDP port %d is used by another program; choose another listen port", err, v.Port)
	}
	return err
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

func (o *Kernel) setLink(ctx context.Context, v *VTEP, index int, what string, add func(*nlconn.Body)) error {
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, index)
	add(&m.Body)
	return o.request(ctx, fmt.Sprintf("set link %q %s", v.Name, what), m)
}

// request sends one request in one write.
func (o *Kernel) request(ctx context.Context, what string, m nlconn.Message) error {
	return o.requestOn(ctx, o.conn.Conn, what, m)
}

func (o *Kernel) requestOn(ctx context.Context, conn *nlconn.Conn, what string, m nlconn.Message) error {
	text := func() string { return what }
	err := netops.Probed(o.probe, text, func() error { return nlconn.Explain(conn.One(ctx, m), what) })
	if err == nil && !o.newDevice {
		o.countRepair("device", text)
	}
	return err
}

// disableAutoconfiguration prevents the device from configuring addresses automatically. If
// /proc/sys is read-only, the device works with a link-local address.
func (o *Kernel) disableAutoconfiguration(name string) (warnings []error) {
	for key, value := range map[string]string{"accept_ra": "0", "addr_gen_mode": netops.AddrGenNone} {
		if err := o.setSysctl("net/ipv6/conf/"+name+"/"+key, value); err != nil {
			warnings = append(warnings, err)
		}
	}
	return warnings
}

// setSysctl writes a sysctl if its value differs. A missing sysctl means that
// IPv6 is disabled; setSysctl ignores it.
func (o *Kernel) setSysctl(key, value string) error {
	c := netops.Sysctl{In: netops.Host, Key: key, Value: value, Optional: true}
	if have, err := c.ReadHere(); errors.Is(err, nlconn.ErrNotExist) || have == value {
		return nil
	}
	if err := netops.Probed(o.probe, c.String, c.WriteHere); err != nil {
		return nlconn.Explain(err, "write "+c.String())
	}
	return nil
}

// addressVTEP adds the device's address, if it has one, before it removes link-local ones, and others in
// the network, because the host's connections to pods need a source address.
func (o *Kernel) addressVTEP(ctx context.Context, v *VTEP, index int) error {
	have, err := o.conn.Addresses(ctx, index)
	if err != nil {
		return err
	}
	found := !v.Address.IsValid()
	var wrong []rtnl.Addr
	for _, a := range have {
		if a.Prefix == v.Address {
			found = true
		} else if v.Network.IsValid() && v.Network.Contains(a.Prefix.Addr()) || a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() {
			wrong = append(wrong, a)
		}
	}
	if !found {
		if err := o.request(ctx, fmt.Sprintf("add address %s dev %q", v.Address, v.Name), addressMessage(unix.RTM_NEWADDR, index, v.Address)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	for _, a := range wrong {
		err := o.request(ctx, fmt.Sprintf("delete address %s dev %q", a.Prefix, v.Name), addressMessage(unix.RTM_DELADDR, index, a.Prefix))
		if err != nil && !nlconn.IsAbsent(err) {
			return err
		}
	}
	return nil
}

// verifyVTEP reads the device and its parent after the device is up. Programs
// that configure devices (systemd-udevd's MACAddressPolicy) may have changed it.
func (o *Kernel) verifyVTEP(ctx context.Context, v *VTEP) (vtepState, error) {
	o.mark = o.monitor.mark()
	have, err := o.findVTEP(ctx, v)
	if err == nil && have == nil {
		err = errLinkGone
	}
	if err != nil {
		return vtepState{}, err
	}
	o.parent, err = o.parentOf(ctx, v)
	if err != nil {
		return vtepState{}, err
	}
	var wrong []error
	if v.MAC != "" && !rtnl.SameMAC(v.MAC, have.MAC) {
		wrong = append(wrong, fmt.Errorf("address %s instead of %s", have.MAC, v.MAC))
	}
	if v.MTU != 0 && have.MTU != v.MTU {
		wrong = append(wrong, fmt.Errorf("mtu %d instead of %d (%q has %d)", have.MTU, v.MTU, v.Parent, o.parent.MTU))
	}
	if !have.IsUp() {
		wrong = append(wrong, errors.New("it is down"))
	}
	if have.IsNoARP() && !v.isWireGuard() {
		wrong = append(wrong, errors.New("its ARP is off"))
	}
	if have.Master != 0 {
		wrong = append(wrong, errors.New("it is another link's port"))
	}
	if have.Alias == o.aliasOf(have.Kind) {
		o.labelled = have.Index
	}
	if len(wrong) > 0 {
		return *have, fmt.Errorf("link %q: %w: another program changes it: %w", v.Name, nlconn.ErrConflict, errors.Join(wrong...))
	}
	return *have, nil
}

// deleteVTEP deletes a device. It deletes the routes and then the nexthops before
// the device, because the kernel takes long to delete them with the device.
func (o *Kernel) deleteVTEP(ctx context.Context, have *vtepState) error {
	if err := o.removePeers(ctx, have.Index); err != nil {
		return err
	}
	return o.deleteLink(ctx, &have.Link)
}

func (o *Kernel) deleteLink(ctx context.Context, have *rtnl.Link) error {
	err := o.request(ctx, fmt.Sprintf("delete link %q", have.Name), rtnl.LinkMessage(unix.RTM_DELLINK, have.Index))
	if nlconn.IsAbsent(err) {
		return nil
	}
	return err
}

// hardware returns the device's MAC as a key of a map. It is zero if there is no MAC.
func (v *vtepState) hardware() (a MAC) {
	copy(a[:], v.MAC)
	return a
}

// addressMessage returns the request that adds or deletes an address.
func addressMessage(kind uint16, index int, p netip.Prefix) nlconn.Message {
	ifa := nl.NewIfAddrmsg(int(rtnl.Family(p.Addr())))
	ifa.Index, ifa.Prefixlen = uint32(index), uint8(p.Bits())
	m := nlconn.Message{Kind: kind, Header: ifa}
	m.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
	m.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
	if kind == unix.RTM_NEWADDR {
		m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		if p.Addr().Is6() {
			m.Uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD)
		}
	}
	return m
}
