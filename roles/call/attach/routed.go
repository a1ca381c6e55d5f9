package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Routed is an attachment without a bridge. It has a pair, a host route to each of the
// container's addresses, and routes in the container through a virtual gateway address.
// On a veth a permanent neighbour entry maps this address to the MAC of the host's end, so
// the host needs neither proxy_arp nor an address on the pair.
type Routed struct {
	// Place is the namespace of the host's end and its routes; empty means the host.
	Place netops.Place
	// LinkType is the kind of the pair.
	LinkType LinkType
	// Gateway4 and Gateway6 are the container's gateways; the IPv6 one is link-local.
	Gateway4, Gateway6 netip.Addr
	// HostMAC is the MAC of the host's end; empty means Input.HostMAC.
	HostMAC string
	// MTU is the MTU of both ends; 0 means the kernel's default.
	MTU int
	// DevGroup is the group of the host's end; 0 means the kernel's default.
	DevGroup uint32
}

// Result replaces every gateway in an IPAM plugin's result by the virtual gateway.
func (r Routed) Result(res *roles.Result) {
	for _, ip := range res.IPs {
		if gw := r.gateway(ip.Address.IP.To4() != nil); gw.IsValid() {
			ip.Gateway = gw.AsSlice()
		}
	}
	for i, rt := range res.Routes {
		if rt == nil || Addr(rt.GW).IsUnspecified() {
			continue
		}
		if gw := r.gateway(rt.Dst.IP.To4() != nil); gw.IsValid() {
			c := *rt
			c.GW = gw.AsSlice()
			res.Routes[i] = &c
		}
	}
}

func (r Routed) gateway(is4 bool) netip.Addr {
	if is4 {
		return r.Gateway4
	}
	return r.Gateway6
}

// AddTo adds the pair, the host's routes and the container's side to a Spec. res has
// passed through Result and holds the container's addresses.
func (r Routed) AddTo(s *netops.Spec, in *Input, res *roles.Result) error {
	ips, err := Addresses(res)
	if err != nil {
		return err
	}
	AddForwarding(s, r.hostPlace(), ips)
	pair := r.LinkType.Pair(in, r.MTU, ips)
	pair.In, pair.MAC, pair.DevGroup = r.hostPlace(), r.hostEndMAC(in), r.DevGroup
	s.Add(pair)
	if err := r.addHostEnd(s, in, ips); err != nil {
		return err
	}
	if err := (Container{PointToPoint: true, MTU: r.MTU, NoARP: r.LinkType == Netkit}).AddTo(s, in, res); err != nil {
		return err
	}
	if r.LinkType == Netkit {
		return nil
	}
	for _, gw := range []netip.Addr{r.Gateway4, r.Gateway6} {
		if slices.ContainsFunc(ips, func(ip IPConfig) bool { return ip.Gateway == gw }) {
			s.Add(&netops.Neigh{In: netops.Container, Link: in.Key.IfName, IP: gw, MAC: r.hostEndMAC(in)})
		}
	}
	return nil
}

// hostPlace returns the namespace of the host's end.
func (r Routed) hostPlace() netops.Place {
	if r.Place != "" {
		return r.Place
	}
	return netops.Host
}

// hostEndMAC returns the MAC of the host's end.
func (r Routed) hostEndMAC(in *Input) string {
	if r.HostMAC != "" {
		return r.HostMAC
	}
	return in.HostMAC
}

// addHostEnd adds the host's end, up, and the host routes to the container's addresses.
func (r Routed) addHostEnd(s *netops.Spec, in *Input, ips []IPConfig) error {
	if err := AddHostEnd(s, r.hostPlace(), in, r.hostEndMAC(in), ips); err != nil {
		return err
	}
	for _, ip := range ips {
		a := ip.Address.Addr()
		s.Add(&netops.Route{In: r.hostPlace(), Link: in.HostLink, Dst: netip.PrefixFrom(a, a.BitLen())})
	}
	return nil
}

// AddHostEnd prepares the host's end of a routed pair and brings it up. The host ignores
// router advertisements from the container. With an IPv6 address in the container, the host
// resolves the container's MAC from a link-local address, which must be usable at once:
// it has no duplicate address detection. Its prefix length of 128 keeps the kernel from
// adding an anycast address, see AddNoLinkLocal. An end without a MAC, whose kernel
// resolves nothing, needs none. CHECK compares only the link: a chained
// plugin may have changed the rest, and the reference plugins make it differently.
func AddHostEnd(s *netops.Spec, place netops.Place, in *Input, mac string, ips []IPConfig) error {
	up := &netops.Link{In: place, Name: in.HostLink, Up: true}
	if in.Prev != nil {
		s.Add(up)
		return nil
	}
	sysctl := "net/ipv6/conf/" + in.HostLink + "/"
	s.Add(&netops.Sysctl{In: place, Key: sysctl + "accept_ra", Value: "0", Optional: true})
	has6 := slices.ContainsFunc(ips, func(ip IPConfig) bool { return ip.Address.Addr().Is6() })
	if has6 {
		s.Add(&netops.Sysctl{In: place, Key: sysctl + "disable_ipv6", Value: "0"})
	}
	AddNoLinkLocal(s, place, in)
	s.Add(up)
	if !has6 || mac == "" {
		return nil
	}
	own, err := netops.LinkLocal(mac)
	if err != nil {
		return fmt.Errorf("link %q: %w", in.HostLink, err)
	}
	s.Add(
		&netops.Addr{In: place, Link: in.HostLink, Address: netip.PrefixFrom(own, own.BitLen()), NoPrefixRoute: true},
		&netops.Route{In: place, Link: in.HostLink, Dst: netip.PrefixFrom(own, 64).Masked()},
	)
	return nil
}

// AddNoLinkLocal keeps the kernel from generating an IPv6 link-local address for the
// host's end. If the host forwards IPv6, the kernel adds the subnet-router anycast address
// of fe80::/64 to that address. When the link is deleted, the anycast address is freed in
// two RCU grace periods instead of one, which takes DEL another 20 ms.
func AddNoLinkLocal(s *netops.Spec, place netops.Place, in *Input) {
	if in.Prev == nil {
		s.Add(&netops.Sysctl{In: place, Key: "net/ipv6/conf/" + in.HostLink + "/addr_gen_mode", Value: netops.AddrGenNone, Optional: true})
	}
}
