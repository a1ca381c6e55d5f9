package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
)

// Routed is an attachment without a bridge. It has a veth pair, a host route to each of
// the container's addresses, and routes in the container through a virtual gateway
// address. A permanent neighbour entry maps this address to the MAC of the host's end, so
// the host needs neither proxy_arp nor an address on the pair.
type Routed struct {
	// Place is the namespace of the host's end and its routes; empty means the host.
	Place netops.Place
	// Gateway4 and Gateway6 are the container's gateways; the IPv6 one is link-local.
	Gateway4, Gateway6 netip.Addr
	// HostMAC is the MAC of the host's end; empty means Input.HostMAC.
	HostMAC string
	// MTU is the MTU of both ends; 0 means the kernel's default.
	MTU int
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
	pair := VethPair(in, r.MTU, ips)
	pair.In, pair.MAC = r.hostPlace(), r.hostEndMAC(in)
	s.Add(pair)
	r.addHostEnd(s, in, ips)
	if err := (Container{PointToPoint: true, MTU: r.MTU}).AddTo(s, in, res); err != nil {
		return err
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

// VethPair returns the veth pair between the host and the container.
func VethPair(in *Input, mtu int, ips []IPConfig) *netops.Link {
	if in.Prev != nil {
		mtu = 0 // a chained plugin may have changed the MTU of both ends
	}
	return &netops.Link{
		In: netops.Host, Name: in.HostLink, Kind: "veth", MAC: in.HostMAC, MTU: mtu, Alias: record.Alias(in.Key, Prefixes(ips)),
		Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
	}
}

// addHostEnd adds the host's end, up, and the host routes to the container's addresses.
func (r Routed) addHostEnd(s *netops.Spec, in *Input, ips []IPConfig) {
	AddHostEndSysctls(s, r.hostPlace(), in, ips)
	s.Add(&netops.Link{In: r.hostPlace(), Name: in.HostLink, Up: true})
	for _, ip := range ips {
		a := ip.Address.Addr()
		s.Add(&netops.Route{In: r.hostPlace(), Link: in.HostLink, Dst: netip.PrefixFrom(a, a.BitLen())})
	}
}

// AddHostEndSysctls prepares the host's end of a routed pair for its addresses. The host
// ignores router advertisements from the container. Duplicate address detection is off
// before the link is up (RFC 4862 section 5.4), because the host resolves the container's
// MAC from its link-local address, which must be usable at once. CHECK does not compare
// sysctls, because a chained plugin may have set them.
func AddHostEndSysctls(s *netops.Spec, place netops.Place, in *Input, ips []IPConfig) {
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
