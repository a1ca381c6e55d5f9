package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// containerIndex is the index of the container's interface in the result. The
// bridge and the host's end of the veth pair come before it.
const containerIndex = 2

// Build computes the spec and the result of one attachment. Shared objects come
// first: a later failure then leaves them complete.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	mac, err := r.conf.mac(in.Args)
	if err != nil {
		return nil, err
	}
	if mac == "" || in.Prev != nil {
		mac = in.ContainerMAC
	}
	res, err := r.result(in, o, mac)
	if err != nil {
		return nil, err
	}
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: mac}
	r.addBridge(&w.Spec, in, o)
	r.addGateway(&w.Spec, o, ips)
	if err := r.conf.masquerade().AddTo(w, in, r.conf.gatewayLink(), ips); err != nil {
		return nil, err
	}
	r.addPort(&w.Spec, in, mac, ips)
	inside := attach.Container{DAD: r.conf.EnableDAD, Down: r.conf.DisableContainerInterface, MTU: r.conf.MTU}
	return w, inside.AddTo(&w.Spec, in, res)
}

// result is the IPAM result with gateways, default routes and interfaces added.
func (r *role) result(in *attach.Input, o observed, mac string) (*roles.Result, error) {
	ifaces := []*roles.ResultInterface{
		{Name: r.conf.Bridge, Mac: o.bridge.MAC},
		{Name: in.HostLink, Mac: in.HostMAC},
		{Name: in.Key.IfName, Mac: mac, Sandbox: in.Netns},
	}
	res := in.Result(r.conf.DNS, ifaces, containerIndex)
	if r.conf.IsGateway {
		if err := r.fillGateways(res, r.conf.IsDefaultGateway && in.Prev == nil); err != nil {
			return nil, err
		}
	}
	if r.hasVLANGateway(len(res.IPs)) {
		res.Interfaces = append(res.Interfaces, &roles.ResultInterface{Name: r.conf.gatewayLink(), Mac: o.gateway.MAC})
	}
	return res, nil
}

// fillGateways sets a missing gateway to the first address of the subnet. With
// routes it adds one default route for each address family. CHECK passes false:
// prevResult has the route already, unless another network of the pod has taken
// over the default route since.
func (r *role) fillGateways(res *roles.Result, routes bool) error {
	for i, ip := range res.IPs {
		p, ok := attach.Prefix(ip.Address)
		if !ok {
			return fmt.Errorf("%w: result ips[%d].address: %v is not an address with a prefix length", roles.ErrDecode, i, ip.Address)
		}
		if len(ip.Gateway) == 0 {
			ip.Gateway = firstAddress(p)
		}
		if !routes || len(ip.Gateway) == 0 || hasDefaultRoute(res.Routes, p.Addr().Is4()) {
			continue
		}
		res.Routes = append(res.Routes, &types.Route{Dst: roles.IPNet(roles.DefaultDst(p.Addr().Is4())), GW: ip.Gateway})
	}
	return nil
}

// firstAddress is the address of the gateway in a container's subnet: the first
// host address. A subnet of two addresses has no network address (RFC 3021, RFC
// 6164); there it is the address that the container does not have. A subnet of
// one address has no gateway: the result is nil.
func firstAddress(p netip.Prefix) net.IP {
	network := p.Masked().Addr()
	switch p.Addr().BitLen() - p.Bits() {
	case 0:
		return nil
	case 1:
		if network != p.Addr() {
			return network.AsSlice()
		}
	}
	return network.Next().AsSlice()
}

// hasDefaultRoute reports whether IPAM gave a default route that makes ours
// unnecessary: a route with a gateway, or a route without table, priority and
// scope, which gets the network's gateway.
func hasDefaultRoute(routes []*types.Route, is4 bool) bool {
	for _, rt := range routes {
		if rt == nil || len(rt.GW) == 0 && (rt.Table != nil || rt.Priority != 0 || rt.Scope != nil) {
			continue
		}
		if p, ok := attach.Prefix(rt.Dst); ok && p.Bits() == 0 && p.Addr().Is4() == is4 {
			return true
		}
	}
	return false
}

// addBridge adds the bridge and turns router advertisements on it off. If
// followsPorts is set, the bridge is made to keep its MAC: containers cache the
// MAC of their gateway, and our new port could change it for all users of the
// bridge.
func (r *role) addBridge(s *netops.Spec, in *attach.Input, o observed) {
	br := &netops.Link{
		In: netops.Host, Shared: true, Name: r.conf.Bridge, Kind: "bridge",
		MTU: r.conf.MTU, Up: true, Promisc: r.conf.PromiscMode, Alias: attachment.SharedAlias,
		Bridge: &netops.Bridge{VLANFiltering: r.conf.vlanAware(), KeepMAC: o.followsPorts},
	}
	if !o.bridge.HasMAC {
		br.MAC = o.bridge.MAC // a bridge keeps a MAC that it got in the meantime
	}
	if in.Prev != nil {
		br.MAC, br.MTU, br.Alias = prevMAC(in.Prev, r.conf.Bridge), 0, ""
	}
	s.Add(br, &netops.Sysctl{
		In: netops.Host, Shared: true, Optional: true,
		Key: "net/ipv6/conf/" + r.conf.Bridge + "/accept_ra", Value: "0",
	})
}

// prevMAC is the MAC that prevResult has for a host interface, or "".
func prevMAC(prev *roles.Result, name string) string {
	for _, i := range prev.Interfaces {
		if i.Name == name && i.Sandbox == "" {
			return i.Mac
		}
	}
	return ""
}

// hasVLANGateway reports whether the gateway's address is on an interface of
// its own.
func (r *role) hasVLANGateway(addresses int) bool {
	return r.conf.IsGateway && r.conf.VLAN != 0 && addresses > 0
}

// addGateway puts the gateways' addresses on the bridge and turns IP
// forwarding on. With a VLAN the addresses are on a veth whose peer is a bridge
// port in that VLAN.
func (r *role) addGateway(s *netops.Spec, o observed, ips []attach.IPConfig) {
	if !r.conf.IsGateway {
		return
	}
	if r.hasVLANGateway(len(ips)) {
		r.addVLANGateway(s, o)
	}
	if slices.ContainsFunc(ips, func(ip attach.IPConfig) bool { return ip.Gateway.Is6() }) {
		// The host may disable IPv6 on new interfaces by default.
		s.Add(&netops.Sysctl{In: netops.Host, Shared: true, Key: "net/ipv6/conf/" + r.conf.gatewayLink() + "/disable_ipv6", Value: "0"})
	}
	for _, ip := range ips {
		if !ip.Gateway.IsValid() {
			continue
		}
		s.Add(&netops.Addr{
			In: netops.Host, Shared: true, Link: r.conf.gatewayLink(),
			Address: netip.PrefixFrom(ip.Gateway, ip.Address.Bits()),
			Sole:    !r.conf.ForceAddress, Replace: r.conf.ForceAddress, ReplaceIn: r.conf.ForceAddressIn,
		})
	}
	attach.AddForwarding(s, netops.Host, ips)
}

// addVLANGateway adds the veth pair "<bridge>.<vlan>" and its bridge port.
func (r *role) addVLANGateway(s *netops.Spec, o observed) {
	name := r.conf.gatewayLink()
	port := attachment.HostLink(store.Key{Network: "gateway", ContainerID: r.conf.Bridge, IfName: name})
	l := &netops.Link{
		In: netops.Host, Shared: true, Name: name, Kind: "veth", MTU: r.conf.MTU, Up: true, Alias: attachment.SharedAlias,
		Peer: &netops.Peer{In: netops.Host, Name: port, Up: true, Master: r.conf.Bridge},
	}
	if !o.gateway.HasMAC {
		l.MAC = o.gateway.MAC
	}
	s.Add(l, &netops.PortVLANs{
		In: netops.Host, SharedPort: true, Link: port,
		VLANs: []netops.VLAN{{ID: uint16(r.conf.VLAN), PVID: true, Untagged: true}},
	})
}

// addPort adds the veth pair, its VLANs and its MAC spoofing protection.
func (r *role) addPort(s *netops.Spec, in *attach.Input, mac string, ips []attach.IPConfig) {
	pair := attach.Veth.Pair(in, r.conf.MTU, ips)
	pair.Up, pair.Master, pair.Peer.MAC = true, r.conf.Bridge, mac
	pair.Port = &netops.Port{Hairpin: r.conf.HairpinMode, Isolated: r.conf.PortIsolation}
	s.Add(attachment.Neighbours(r.conf.gatewayLink(), mac, attach.Prefixes(ips), true)...)
	s.Add(pair)
	attach.AddNoLinkLocal(s, netops.Host, in)
	if r.conf.vlanAware() {
		s.Add(&netops.PortVLANs{
			In: netops.Host, Link: in.HostLink, VLANs: r.portVLANs(), KeepDefault: r.conf.PreserveDefaultVLAN,
		})
	}
	if r.conf.MACSpoofCheck {
		s.Add(
			&netops.Element{Set: "macguard_pairs", Key: []string{in.HostLink, mac}, Label: in.Label},
			&netops.Element{Set: "macguard_ports", Key: []string{in.HostLink}, Label: in.Label},
		)
	}
}

// portVLANs is the port's VLAN list: the access VLAN untagged, the trunk's
// VLANs tagged. A trunk without an access VLAN keeps VLAN 1 as its native VLAN.
func (r *role) portVLANs() []netops.VLAN {
	native := r.conf.VLAN
	if native == 0 {
		native = 1
	}
	out := []netops.VLAN{{ID: uint16(native), PVID: true, Untagged: true}}
	for _, t := range r.conf.VLANTrunk {
		if t.MinID != nil {
			out = append(out, netops.VLAN{ID: uint16(*t.MinID), End: uint16(*t.MaxID)})
		}
		if t.ID != nil {
			out = append(out, netops.VLAN{ID: uint16(*t.ID)})
		}
	}
	return out
}
