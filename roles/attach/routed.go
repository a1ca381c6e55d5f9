package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
)

// Routed is an attachment without a bridge: a veth pair, a route on the host to each of
// the container's addresses, and routes in the container over a virtual gateway address,
// which a permanent neighbour entry maps to the host's end. The host therefore needs
// neither proxy_arp nor an address on the pair.
type Routed struct {
	// Place is the namespace of the host's end and its routes; empty is the host.
	Place netops.Place
	// Gateway4 and Gateway6 are the container's gateways; the IPv6 one is link-local.
	Gateway4, Gateway6 netip.Addr
	// HostMAC is the MAC of the host's end; empty is Input.HostMAC.
	HostMAC string
	// MTU is that of both ends; 0 leaves it to the kernel.
	MTU int
}

// Result replaces every gateway of an IPAM plugin's answer by the container's.
// CHECK's result has them already.
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
// result is Result's, with the addresses that the container gets.
func (r Routed) AddTo(s *netops.Spec, in *Input, res *roles.Result) error {
	ips, err := Addresses(res)
	if err != nil {
		return err
	}
	forwarding(s, r.place(), ips)
	pair := VethPair(in, r.MTU, ips)
	pair.In, pair.MAC = r.place(), r.hostMAC(in)
	s.Add(pair)
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

// place is the namespace of the host's end.
func (r Routed) place() netops.Place {
	if r.Place != "" {
		return r.Place
	}
	return netops.Host
}

// hostMAC is the MAC of the host's end.
func (r Routed) hostMAC(in *Input) string {
	if r.HostMAC != "" {
		return r.HostMAC
	}
	return in.HostMAC
}

// VethPair returns the pair between the host and the container.
func VethPair(in *Input, mtu int, ips []Family) *netops.Link {
	if in.Prev != nil {
		mtu = 0 // a chained plugin may have changed the MTU of both ends
	}
	return &netops.Link{
		In: netops.Host, Name: in.HostLink, Kind: "veth", MAC: in.HostMAC, MTU: mtu, Alias: record.Alias(in.Key, Prefixes(ips)),
		Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
	}
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

// HostEndSysctls prepares the host's end of a routed pair. It ignores a container's
// router advertisements. Duplicate address detection is off before the link is up (RFC
// 4862 section 5.4), because the host resolves the container's MAC from its link-local
// address, which must be usable at once. CHECK leaves sysctls out, as in the container.
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
