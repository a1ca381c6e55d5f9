package routed

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// containerIndex is the index of the container's interface in the result. The
// host's end comes before it.
const containerIndex = 1

// gateways are the gateways of every pod: link-local addresses that no
// interface has (RFC 3927; RFC 4291, section 2.5.6).
func gateways() (four, six netip.Addr) {
	return netip.AddrFrom4([4]byte{169, 254, 1, 1}), netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1})
}

// Build computes the spec and the result of one attachment. Shared objects come
// first: a later failure then leaves them complete.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(*observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	in, err := r.conf.LinkType.Input(in)
	if err != nil {
		return nil, err
	}
	four, six := gateways()
	pair := attach.Routed{LinkType: r.conf.LinkType, Gateway4: four, Gateway6: six, MTU: r.conf.MTU, DevGroup: r.conf.devGroup()}
	if pair.MTU == 0 {
		pair.MTU = o.MTU
	}
	res, err := r.result(in, pair)
	if err != nil {
		return nil, err
	}
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: in.ContainerMAC}
	addRASysctls(&w.Spec, o)
	r.addSNAT(w, in, o, ips)
	r.addPolicyRouting(&w.Spec, in, o, ips)
	for i, ip := range ips {
		res.IPs[i].Address = roles.IPNet(single(ip.Address.Addr()))
	}
	if err := pair.AddTo(&w.Spec, in, res); err != nil {
		return nil, err
	}
	r.addSourceRules(&w.Spec, in, o, ips)
	return w, nil
}

// result is the IPAM result with the pod's virtual gateway as next hop of every
// route: the host is the only neighbour on the link. An address family for
// which IPAM gives no route gets a default route; a family without addresses
// gets none. CHECK keeps the routes as they are: another network of the pod may
// have taken over the default route since.
func (r *role) result(in *attach.Input, pair attach.Routed) (*roles.Result, error) {
	res := in.Result(r.conf.DNS, []*roles.ResultInterface{
		{Name: in.HostLink, Mac: in.HostMAC},
		{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns},
	}, containerIndex)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	given := res.Routes
	res.Routes = nil
	for _, is4 := range []bool{true, false} {
		if !slices.ContainsFunc(ips, func(ip attach.IPConfig) bool { return ip.Address.Addr().Is4() == is4 }) {
			continue
		}
		noRoute := true
		for _, rt := range given {
			if rt == nil || (rt.Dst.IP.To4() != nil) != is4 {
				continue
			}
			noRoute = false
			own := *rt
			own.GW = nil
			res.Routes = append(res.Routes, &own)
		}
		if noRoute && in.Prev == nil {
			res.Routes = append(res.Routes, &types.Route{Dst: roles.IPNet(roles.DefaultDst(is4))})
		}
	}
	pair.Result(res)
	return res, nil
}

// single is the prefix that contains one address only.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// addRASysctls keeps the IPv6 routes of router advertisements when the node
// starts to forward (accept_ra 2, kernel: ip-sysctl). In most clouds they
// include the node's default route. CHECK does not compare sysctls.
func addRASysctls(s *netops.Spec, o *observed) {
	for _, link := range o.RALinks {
		s.Add(&netops.Sysctl{In: netops.Host, Shared: true, Key: "net/ipv6/conf/" + link + "/accept_ra", Value: "2"})
	}
}

// addPolicyRouting adds what pods share if several NICs are in use: policy
// rules, and a table for each NIC but the first. The rule for addresses of this
// node comes first, then the rule for packets that must leave through the first
// NIC. The first NIC gets rp_filter 2 (loose): it must accept packets for pods
// whose replies leave through another NIC.
func (r *role) addPolicyRouting(s *netops.Spec, in *attach.Input, o *observed, ips []attach.IPConfig) {
	if o.Uplink == "" {
		return
	}
	if o.StrictRPFilter {
		s.Add(&netops.Sysctl{In: netops.Host, Shared: true, Key: "net/ipv4/conf/" + o.Uplink + "/rp_filter", Value: "2"})
	}
	s.Add(&netops.Element{Shared: true, Set: netops.UplinkSet, Key: []string{o.Uplink}, Label: sharedLabel(in)})
	add := func(o netops.Object) {
		if !slices.ContainsFunc(s.Objects, func(have netops.Object) bool { return have.String() == o.String() }) {
			s.Add(o)
		}
	}
	for _, ip := range ips {
		a := ip.Address.Addr()
		toMain := netops.Rule{In: netops.Host, Shared: true, Family: netops.FamilyOf(a), Table: unix.RT_TABLE_MAIN, Protocol: netops.PolicyProtocol}
		here, marked := toMain, toMain
		here.Priority, here.MinBits = r.conf.Priorities.HostRoutes, a.BitLen()
		marked.Priority, marked.Mark, marked.Mask = r.conf.Priorities.Mark, netops.RoutedMark, netops.RoutedMark
		add(&here)
		add(&marked)
		nic := o.nicOf(a)
		if nic.Device == 0 {
			continue
		}
		table := r.conf.TableBase + nic.Device
		add(&netops.Link{In: netops.Host, Shared: true, Name: nic.Link, Up: true})
		add(&netops.Route{In: netops.Host, Shared: true, Link: nic.Link, Dst: single(nic.Gateway), Table: table, Protocol: netops.PolicyProtocol})
		add(&netops.Route{In: netops.Host, Shared: true, Link: nic.Link, Dst: roles.DefaultDst(nic.Gateway.Is4()), Via: nic.Gateway, Table: table, Protocol: netops.PolicyProtocol})
	}
}

// addSourceRules adds the rules for a pod's addresses that belong to a NIC
// other than the first: packets from such an address use that NIC's table. The
// rule names the pod's interface, so a rule that is left behind matches
// nothing.
func (r *role) addSourceRules(s *netops.Spec, in *attach.Input, o *observed, ips []attach.IPConfig) {
	for _, ip := range ips {
		a := ip.Address.Addr()
		if nic := o.nicOf(a); nic.Device != 0 {
			s.Add(&netops.Rule{
				In: netops.Host, Family: netops.FamilyOf(a), Priority: r.conf.Priorities.From, From: single(a), IIF: in.HostLink,
				Table: r.conf.TableBase + nic.Device, Protocol: netops.PolicyProtocol,
			})
		}
	}
}
