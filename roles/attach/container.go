package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Result begins a role's result: IPAM's answer, its addresses on
// interfaces[own], which is the container's. The configuration's dns replaces
// IPAM's when any field is set; an empty list counts as set: it is how IPAM's
// answer is taken away.
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

// Container is the container's side of an attachment after its interface is made:
// settings, addresses, link up, routes.
type Container struct {
	// DAD leaves IPv6 duplicate address detection on.
	DAD bool
	// Down leaves the interface down.
	Down bool
	// MTU is the interface's MTU, or 0 if it is not known.
	MTU int
	// PointToPoint has only the gateways on the link: the rest of a subnet is behind
	// its gateway. Other gateways of routes are assumed to answer on the link.
	PointToPoint bool
}

// AddTo adds the container's side to a Spec. Addresses come before the link is
// up, so that nothing is announced without them, and bringing it up announces
// them: a gratuitous ARP (RFC 5227, arp_notify) and an unsolicited neighbour
// advertisement (RFC 4861 section 7.2.6, ndisc_notify).
func (c Container) AddTo(s *netops.Spec, in *Input, res *roles.Result) error {
	ips, err := Addresses(res)
	if err != nil {
		return err
	}
	if err := c.carries(in, ips); err != nil {
		return err
	}
	name := in.Key.IfName
	if len(ips) > 0 {
		c.wireSysctls(s, in, name, ips)
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

// carries returns an error if the interface's MTU is too small for its addresses. It
// is not part of CHECK, which compares the addresses themselves.
func (c Container) carries(in *Input, ips []Family) error {
	i := slices.IndexFunc(ips, func(ip Family) bool { return ip.Address.Addr().Is6() })
	if c.MTU == 0 || c.MTU >= minMTU6 || i < 0 || in.Prev != nil {
		return nil
	}
	return &roles.ConfError{Path: "mtu", Reason: fmt.Sprintf(
		"the interface's %d is too small for %s: IPv6 needs %d or more (RFC 8200, section 5)", c.MTU, ips[i].Address, minMTU6)}
}

// gatewayRoutes lead to every gateway, and over it to the rest of the subnet.
func gatewayRoutes(link string, ips []Family) []netops.Object {
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

// onLink marks the routes whose gateway is not one of the link's.
func onLink(routes []netops.Object, ips []Family) {
	for _, o := range routes {
		r, ok := o.(*netops.Route)
		if ok && r.Via.IsValid() && !slices.ContainsFunc(ips, func(ip Family) bool { return ip.Gateway == r.Via }) {
			r.OnLink = true
		}
	}
}

// wireSysctls prepares the container's interface for its addresses. CHECK
// leaves them out: a chained plugin may have tuned them.
func (c Container) wireSysctls(s *netops.Spec, in *Input, name string, ips []Family) {
	if in.Prev != nil {
		return
	}
	set := func(key, value string, optional bool) {
		s.Add(&netops.Sysctl{In: netops.Container, Key: key, Value: value, Optional: optional})
	}
	dad := "0"
	if c.DAD {
		dad = "1"
		set("net/ipv6/conf/"+name+"/enhanced_dad", "1", true)
	}
	set("net/ipv6/conf/"+name+"/accept_dad", dad, true)
	set("net/ipv4/conf/"+name+"/arp_notify", "1", false)
	for _, ip := range ips {
		if ip.Address.Addr().Is6() {
			// All attachments use lo: DEL leaves it unchanged.
			s.Add(&netops.Sysctl{In: netops.Container, Shared: true, Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"})
			set("net/ipv6/conf/"+name+"/disable_ipv6", "0", false)
			set("net/ipv6/conf/"+name+"/keep_addr_on_down", "1", false)
			set("net/ipv6/conf/"+name+"/ndisc_notify", "1", false)
			return
		}
	}
}
