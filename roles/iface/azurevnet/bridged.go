package azurevnet

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// wireBridged puts the container on a bridge that has the master's place. Shared
// objects come first, so that a failure further on leaves nothing half made on them.
func (r *role) wireBridged(in *attach.Input, o observed) (*attach.Desired, error) {
	res := in.Result(r.conf.dns(), []*roles.ResultInterface{
		{Name: o.Bridge, Mac: o.Master.MAC},
		{Name: in.HostLink, Mac: in.HostMAC},
		{Name: in.Key.IfName, Mac: in.ContainerMAC, Sandbox: in.Netns},
	}, 2)
	ips, err := attach.Addresses(res)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{Result: res, HostLink: in.HostLink, MAC: in.ContainerMAC}
	r.wireUplink(&w.Spec, in, o)
	r.wirePort(&w.Spec, in, o, ips)
	return w, attach.Container{MTU: r.mtu(o)}.AddTo(&w.Spec, in, res)
}

// wireUplink is what all containers share: the bridge in the master's place, and
// at its port the translation of hardware addresses, for the network outside takes
// frames of the master's only.
func (r *role) wireUplink(s *netops.Spec, in *attach.Input, o observed) {
	label := record.SharedLabel(in.Key.Network)
	s.Add(
		// First: a port with hairpin sends back what came in for many receivers.
		&netops.Element{Shared: true, Set: "macnat_uplinks", Key: []string{o.Master.Name}, Value: []string{o.Master.MAC}, Label: label},
		&netops.Takeover{Bridge: o.Bridge, Uplink: o.Master.Name, NoHairpin: r.conf.DisableHairpinOnHostInterface},
		&netops.LinkDNS{Link: o.Bridge, From: o.Master.Name},
	)
	if r.conf.Mode == modeTunnel {
		s.Add(&netops.Neigh{In: netops.Host, Shared: true, Link: o.Master.Name, MAC: tunnelMAC, FDB: true})
	}
	var none roles.Faults
	for _, a := range r.conf.viaHost(&none) {
		s.Add(&netops.Element{Shared: true, Set: "macnat_host4", Key: []string{hostPrefix + "*", a.String()}, Value: []string{o.Master.MAC}, Label: label})
	}
}

// tunnelMAC is the one that the cloud's network has for everybody else.
const tunnelMAC = "12:34:56:78:9a:bc"

// wirePort is the container's port. A permanent neighbour and a static forwarding
// entry tell the node its hardware address. What the network outside asks about it is
// asked of the container alone, which the maps see to: an answer of the bridge's own
// (neigh_suppress) would have the container's hardware address, and be a second one.
func (r *role) wirePort(s *netops.Spec, in *attach.Input, o observed, ips []attach.Family) {
	mtu := r.mtu(o)
	if in.Prev != nil {
		mtu = 0 // a chained plugin may have set another, at both ends
	}
	s.Add(
		&netops.Link{
			In: netops.Host, Name: in.HostLink, Kind: "veth", MAC: in.HostMAC, MTU: mtu, Up: true,
			Alias: record.Alias(in.Key, addresses(ips)), Master: o.Bridge,
			Port: &netops.Port{Hairpin: true},
			Peer: &netops.Peer{In: netops.Container, Name: in.Key.IfName, MAC: in.ContainerMAC, MTU: mtu},
		},
		&netops.Neigh{In: netops.Host, Link: in.HostLink, MAC: in.ContainerMAC, FDB: true},
	)
	for _, ip := range ips {
		a := ip.Address.Addr()
		set := "macnat_pods4"
		if a.Is6() {
			set = "macnat_pods6"
		}
		s.Add(
			&netops.Neigh{In: netops.Host, Link: o.Bridge, IP: a, MAC: in.ContainerMAC, Replace: true}, // IPAM gave the address: another's entry was left behind
			&netops.Element{Set: set, Key: []string{o.Master.Name, a.String()}, Value: []string{in.ContainerMAC}, Label: in.Label},
		)
	}
	if r.conf.Mode == modeTunnel {
		s.Add(&netops.Element{Set: "macnat_tunnel", Key: []string{in.HostLink}, Value: []string{tunnelMAC}, Label: in.Label})
	}
}
