package ptp

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// containerIndex is the index of the container's interface in the result. The
// host's end comes before it.
const containerIndex = 1

// Build computes the spec and the result of one attachment. Shared objects come
// first: a later failure then leaves them complete.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	in, err := r.conf.LinkType.Input(in)
	if err != nil {
		return nil, err
	}
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
	attach.AddForwarding(&w.Spec, netops.Host, ips)
	for _, ip := range ips {
		if err := r.conf.masquerade().AddPairTo(w, in, r.conf.LinkType, ip); err != nil {
			return nil, err
		}
	}
	if r.conf.HostAddressing {
		for i, ip := range ips {
			ips[i].Address = single(ip.Address.Addr())
			res.IPs[i].Address = roles.IPNet(ips[i].Address)
		}
	}
	w.Spec.Add(r.conf.LinkType.Pair(in, r.conf.MTU, ips))
	if err := addHostEnd(&w.Spec, in, ips); err != nil {
		return nil, err
	}
	return w, attach.Container{PointToPoint: true, MTU: r.conf.MTU, NoARP: r.conf.LinkType == attach.Netkit}.AddTo(&w.Spec, in, res)
}

// checkGateways requires a gateway for every address: the host's end gets it as
// its own address.
func checkGateways(ips []attach.IPConfig) error {
	var f roles.Faults
	for _, ip := range ips {
		switch {
		case !ip.Gateway.IsValid():
			f.Addf("ipam", "gave %s without a gateway, which is the address of the host's end: set the gateway in ipam", ip.Address)
		case ip.Gateway == ip.Address.Addr():
			f.Addf("ipam", "gave %s with itself as the gateway: set another gateway in ipam for the host's end", ip.Address)
		}
	}
	return f.Err()
}

// addHostEnd adds the objects of the host's end: the gateways' addresses, and a
// route to each address of the container.
func addHostEnd(s *netops.Spec, in *attach.Input, ips []attach.IPConfig) error {
	if err := attach.AddHostEnd(s, netops.Host, in, in.HostMAC, ips); err != nil {
		return err
	}
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
	return nil
}

// single is the prefix that contains one address only.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
