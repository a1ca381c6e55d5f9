package ptp

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

const (
	// containerIndex is the container interface's place in the result: after the
	// host side's.
	containerIndex = 1
	// hostLinks is the pattern of the host side's interfaces (node.HostLink).
	// With the subnet it tells a network's traffic where no interface of the
	// host does.
	hostLinks = record.HostLinkPrefix + "*"
)

// Build computes the spec and the result of one attachment. Shared objects come
// first, so that a failure further on leaves nothing half made on them.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	ifaces := []*roles.ResultInterface{
		{Name: in.HostLink, Mac: in.HostMAC},
		{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns},
	}
	res := in.Result(r.conf.DNS, ifaces, containerIndex)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	if err := checkGateways(ips); err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: in.ContainerMAC}
	attach.Forwarding(&w.Spec, ips)
	r.wireMasquerade(&w.Spec, in, ips)
	if r.conf.HostAddressing {
		for i, ip := range ips {
			ips[i].Address = single(ip.Address.Addr())
			res.IPs[i].Address = attach.IPNet(ips[i].Address)
		}
	}
	r.wirePair(&w.Spec, in, ips)
	wireHost(&w.Spec, in, ips)
	return w, attach.Container{PointToPoint: true, MTU: r.conf.MTU}.AddTo(&w.Spec, in, res)
}

// checkGateways wants a gateway with every address: it is the host's end.
func checkGateways(ips []attach.Family) error {
	var f roles.Faults
	for _, ip := range ips {
		switch {
		case !ip.Gateway.IsValid():
			f.Addf("ipam", "gave %s without a gateway, which the host's end of the link is: set ipam's gateway", ip.Address)
		case ip.Gateway == ip.Address.Addr():
			f.Addf("ipam", "gave %s with itself as the gateway: set another for the host's end", ip.Address)
		}
	}
	return f.Err()
}

// wireMasquerade is one entry a subnet, made by the first attachment. An
// address without a subnet has one of its own. CHECK, to which prevResult does
// not tell the subnet of a host address, asks for either.
func (r *role) wireMasquerade(s *netops.Spec, in *attach.Input, ips []attach.Family) {
	m := r.conf.masquerade()
	if in.Prev != nil {
		for _, ip := range ips {
			m.AddTo(s, in, in.HostLink, []attach.Family{{Address: single(ip.Address.Addr())}})
		}
		return
	}
	for _, ip := range ips {
		if ip.Address.IsSingleIP() {
			m.AddOwnTo(s, in, in.HostLink, ip)
		} else {
			m.AddTo(s, in, hostLinks, []attach.Family{ip})
		}
	}
}

// wirePair is the veth pair.
func (r *role) wirePair(s *netops.Spec, in *attach.Input, ips []attach.Family) {
	addrs := make([]netip.Prefix, len(ips))
	for i, ip := range ips {
		addrs[i] = ip.Address
	}
	mtu := r.conf.MTU
	if in.Prev != nil {
		mtu = 0 // a chained plugin may have set another, at both ends
	}
	s.Add(&netops.Link{
		In: netops.Host, Name: in.HostLink, Kind: "veth", MAC: in.HostMAC, MTU: mtu, Alias: record.Alias(in.Key, addrs),
		Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
	})
}

// wireHost is the host's side: the gateways' addresses, and a route to each of
// the container's.
func wireHost(s *netops.Spec, in *attach.Input, ips []attach.Family) {
	attach.HostEndSysctls(s, in, ips)
	s.Add(&netops.Link{In: netops.Host, Name: in.HostLink, Up: true})
	made := map[netip.Addr]bool{}
	for _, ip := range ips {
		if !made[ip.Gateway] {
			s.Add(&netops.Addr{In: netops.Host, Link: in.HostLink, Address: single(ip.Gateway), NoPrefixRoute: true})
			made[ip.Gateway] = true
		}
	}
	for _, ip := range ips {
		s.Add(&netops.Route{In: netops.Host, Link: in.HostLink, Dst: single(ip.Address.Addr())})
	}
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
