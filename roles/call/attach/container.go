package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Result returns a role's result: the IPAM plugin's result with its addresses on
// interfaces[own], the container's interface. The configuration's dns replaces the IPAM
// plugin's if any field is set. An empty list is set, so a configuration can remove the
// IPAM plugin's DNS servers.
func (in *Input) Result(dns types.DNS, interfaces []*roles.ResultInterface, own int) *roles.Result {
	res := &roles.Result{CNIVersion: roles.ResultVersion, Interfaces: interfaces}
	if in.IPAM != nil {
		res.DNS = in.IPAM.DNS
		res.Routes = append(res.Routes, in.IPAM.Routes...)
		for _, ip := range in.IPAM.IPs {
			c := *ip
			c.Interface = new(int)
			*c.Interface = own
			res.IPs = append(res.IPs, &c)
		}
	}
	if dns.Nameservers != nil || dns.Domain != "" || dns.Search != nil || dns.Options != nil {
		res.DNS = dns
	}
	return res
}

// Container configures the container's interface after it is made: sysctls, addresses,
// link up, routes.
type Container struct {
	// DAD leaves IPv6 duplicate address detection on.
	DAD bool
	// Down leaves the interface down.
	Down bool
	// MTU is the interface's MTU, or 0 if it is not known.
	MTU int
	// PointToPoint means that only the gateways are on the link: the other addresses of a
	// subnet are routed through its gateway. Routes through other gateways get the flag
	// onlink.
	PointToPoint bool
	// NoARP means that the kernel resolves no addresses on the link: it has no
	// announcements and no duplicate address detection.
	NoARP bool
}

// AddTo adds the container's side to a Spec. It adds the addresses before it sets the
// link up, because the kernel announces them when the link comes up: a gratuitous ARP
// (RFC 5227, arp_notify) and an unsolicited neighbour advertisement (RFC 4861 section
// 7.2.6, ndisc_notify). While another node has the addresses, too, it is that node that
// announces them.
func (c Container) AddTo(s *netops.Spec, in *Input, res *roles.Result) error {
	ips, err := Addresses(res)
	if err != nil {
		return err
	}
	if err := c.checkMTU(in, ips); err != nil {
		return err
	}
	name := in.Key.IfName
	if len(ips) > 0 {
		c.addSysctls(s, in, name, ips)
	}
	for _, ip := range ips {
		s.Add(&netops.Addr{In: netops.Container, Link: name, Address: ip.Address, DAD: c.DAD, NoPrefixRoute: c.PointToPoint})
	}
	if !c.Down {
		s.Add(&netops.Link{In: netops.Container, Name: name, Up: true})
	}
	if len(ips) == 0 {
		return nil
	}
	routes, err := Routes(res, name)
	if err != nil {
		return err
	}
	if c.PointToPoint {
		s.Add(gatewayRoutes(name, ips)...)
		onLink(routes, ips)
	}
	s.Add(routes...)
	return nil
}

// minMTU6 is the smallest MTU of a link that carries IPv6 (RFC 8200, section 5).
// The kernel removes IPv6 from a link with a smaller one.
const minMTU6 = 1280

// checkMTU returns an error if the interface's MTU is too small for its addresses. CHECK
// does not need it, because CHECK compares the addresses.
func (c Container) checkMTU(in *Input, ips []IPConfig) error {
	i := slices.IndexFunc(ips, func(ip IPConfig) bool { return ip.Address.Addr().Is6() })
	if c.MTU == 0 || c.MTU >= minMTU6 || i < 0 || in.Prev != nil {
		return nil
	}
	return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf(
		"the interface's MTU %d is too small for %s: IPv6 needs %d or more (RFC 8200, section 5)", c.MTU, ips[i].Address, minMTU6)}
}

// gatewayRoutes returns a route to every gateway, and through it to its subnet.
func gatewayRoutes(link string, ips []IPConfig) []netops.Object {
	var out []netops.Object
	reached := map[netip.Prefix]bool{}
	route := func(dst netip.Prefix, via, own netip.Addr) {
		if !reached[dst] {
			out = append(out, &netops.Route{In: netops.Container, Link: link, Dst: dst, Via: via, Src: own})
			reached[dst] = true
		}
	}
	for _, ip := range ips {
		if !ip.Gateway.IsValid() {
			continue
		}
		route(netip.PrefixFrom(ip.Gateway, ip.Gateway.BitLen()), netip.Addr{}, ip.Address.Addr())
		if !ip.Address.IsSingleIP() {
			route(ip.Address.Masked(), ip.Gateway, ip.Address.Addr())
		}
	}
	return out
}

// onLink sets the flag onlink of the routes through other gateways than those of the
// addresses.
func onLink(routes []netops.Object, ips []IPConfig) {
	for _, o := range routes {
		r, ok := o.(*netops.Route)
		if ok && r.Via.IsValid() && !slices.ContainsFunc(ips, func(ip IPConfig) bool { return ip.Gateway == r.Via }) {
			r.OnLink = true
		}
	}
}

// addSysctls prepares the container's interface for its addresses. CHECK does not compare
// sysctls, because a chained plugin may have set them.
func (c Container) addSysctls(s *netops.Spec, in *Input, name string, ips []IPConfig) {
	if in.Prev != nil {
		return
	}
	set := func(key, value string, optional bool) {
		s.Add(&netops.Sysctl{In: netops.Container, Key: key, Value: value, Optional: optional})
	}
	announce := "1"
	if in.Quiet {
		announce = "0"
	}
	if !c.NoARP {
		dad := "0"
		if c.DAD {
			dad = "1"
			set("net/ipv6/conf/"+name+"/enhanced_dad", "1", true)
		}
		set("net/ipv6/conf/"+name+"/accept_dad", dad, true)
		set("net/ipv4/conf/"+name+"/arp_notify", announce, false)
	}
	for _, ip := range ips {
		if ip.Address.Addr().Is6() {
			// All attachments of the container share lo, so DEL does not restore it.
			s.Add(&netops.Sysctl{In: netops.Container, Shared: true, Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"})
			set("net/ipv6/conf/"+name+"/disable_ipv6", "0", false)
			set("net/ipv6/conf/"+name+"/keep_addr_on_down", "1", false)
			if !c.NoARP {
				set("net/ipv6/conf/"+name+"/ndisc_notify", announce, false)
			}
			return
		}
	}
}
