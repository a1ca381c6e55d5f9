package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
)

// Routed is the wiring of an attachment that no bridge connects: a veth pair, on the
// host a route to each of the container's addresses, and in the container routes by a
// gateway that is no address of anybody's: a permanent neighbour entry says that it is
// the host's end. So nothing answers ARP for another (proxy_arp is not needed), and the
// host needs no address on the pair.
type Routed struct {
	// Place is where the host's end is and routes; empty is the host.
	Place netops.Place
	// Gateway4 and Gateway6 are the container's gateways; of IPv6 a link-local one.
	Gateway4, Gateway6 netip.Addr
	// HostMAC is the host's end's; empty is Input.HostMAC.
	HostMAC string
	// MTU is of both ends; 0 leaves it to the kernel.
	MTU int
}

// Result makes an IPAM plugin's answer what Build wires: every gateway is the
// container's, whatever the plugin said. CHECK's result is so already.
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

// AddTo adds the pair, the host's routes and the container's side to a Spec. The
// result is Result's, with the addresses as the container is to have them.
func (r Routed) AddTo(s *netops.Spec, in *Input, res *roles.Result) error {
	ips, err := Addresses(res)
	if err != nil {
		return err
	}
	forwarding(s, r.place(), ips)
	r.wirePair(s, in, ips)
	r.wireHost(s, in, ips)
	if err := (Container{PointToPoint: true, MTU: r.MTU}).AddTo(s, in, res); err != nil {
		return err
	}
	for _, gw := range []netip.Addr{r.Gateway4, r.Gateway6} {
		if slices.ContainsFunc(ips, func(ip Family) bool { return ip.Gateway == gw }) {
			s.Add(&netops.Neigh{In: netops.Container, Link: in.Key.IfName, IP: gw, MAC: r.hostMAC(in)})
		}
	}
	return nil
}

// place is where the host's end is.
func (r Routed) place() netops.Place {
	if r.Place != "" {
		return r.Place
	}
	return netops.Host
}

// hostMAC is the host's end's.
func (r Routed) hostMAC(in *Input) string {
	if r.HostMAC != "" {
		return r.HostMAC
	}
	return in.HostMAC
}

// wirePair is the veth pair.
func (r Routed) wirePair(s *netops.Spec, in *Input, ips []Family) {
	addrs := make([]netip.Prefix, len(ips))
	for i, ip := range ips {
		addrs[i] = ip.Address
	}
	mtu := r.MTU
	if in.Prev != nil {
		mtu = 0 // a chained plugin may have set another, at both ends
	}
	s.Add(&netops.Link{
		In: r.place(), Name: in.HostLink, Kind: "veth", MAC: r.hostMAC(in), MTU: mtu, Alias: record.Alias(in.Key, addrs),
		Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
	})
}

// wireHost is the host's side: the routes to the container's addresses.
func (r Routed) wireHost(s *netops.Spec, in *Input, ips []Family) {
	hostEndSysctls(s, r.place(), in, ips)
	s.Add(&netops.Link{In: r.place(), Name: in.HostLink, Up: true})
	for _, ip := range ips {
		a := ip.Address.Addr()
		s.Add(&netops.Route{In: r.place(), Link: in.HostLink, Dst: netip.PrefixFrom(a, a.BitLen())})
	}
}

// HostEndSysctls prepares the host's end of a pair that is routed. Router
// advertisements of a container are not for the host. Its link-local address, which
// the host asks for the container's MAC with, is to be usable at once, so duplicate
// address detection is off before the link is up (RFC 4862 section 5.4). CHECK leaves
// settings out, as inside.
func HostEndSysctls(s *netops.Spec, in *Input, ips []Family) { hostEndSysctls(s, netops.Host, in, ips) }

func hostEndSysctls(s *netops.Spec, place netops.Place, in *Input, ips []Family) {
	if in.Prev != nil {
		return
	}
	set := func(name, value string, optional bool) {
		s.Add(&netops.Sysctl{In: place, Key: fmt.Sprintf("net/ipv6/conf/%s/%s", in.HostLink, name), Value: value, Optional: optional})
	}
	set("accept_ra", "0", true)
	set("accept_dad", "0", true)
	for _, ip := range ips {
		if ip.Address.Addr().Is6() {
			set("disable_ipv6", "0", false)
			return
		}
	}
}
