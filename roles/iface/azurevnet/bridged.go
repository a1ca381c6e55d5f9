package azurevnet

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// buildBridged connects the container to a bridge that replaces the master.
// Shared objects come first: a later failure then leaves them complete.
func (r *role) buildBridged(in *attach.Input, o observed) (*attach.Desired, error) {
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
	r.addUplink(&w.Spec, in, o)
	r.addPort(&w.Spec, in, o, ips)
	return w, attach.Container{MTU: r.mtu(o)}.AddTo(&w.Spec, in, res)
}

// addUplink adds the objects that all containers share: the bridge that takes over the
// master's addresses and routes, and MAC address translation at its port, because the
// cloud's network accepts only frames with the master's MAC.
func (r *role) addUplink(s *netops.Spec, in *attach.Input, o observed) {
	label := attachment.SharedLabel(in.Key.Network)
	s.Add(
		// The translation comes before the takeover: a port with hairpin sends
		// received multicast and broadcast frames back.
		&netops.Element{Shared: true, Set: "macnat_uplinks", Key: []string{o.Master.Name}, Value: []string{o.Master.MAC}, Label: label},
		&netops.Takeover{Bridge: o.Bridge, Uplink: o.Master.Name, NoHairpin: r.conf.DisableHairpinOnHostInterface},
		&netops.LinkDNS{Link: o.Bridge, From: o.Master.Name},
	)
	if r.conf.Mode == modeTunnel {
		s.Add(&netops.Neigh{In: netops.Host, Shared: true, Link: o.Master.Name, MAC: tunnelMAC, FDB: true})
	}
	var none roles.Faults
	for _, a := range r.conf.viaHost(&none) {
		s.Add(&netops.Element{Shared: true, Set: "macnat_node4", Key: []string{a.String()}, Value: []string{o.Master.MAC}, Label: label})
	}
}

// tunnelMAC is the MAC that the cloud's network uses for every other host.
const tunnelMAC = "12:34:56:78:9a:bc"

// addPort adds the container's port. A permanent neighbour entry and a static
// forwarding entry give the container's MAC to the node. The macnat sets pass
// ARP and ND requests of the cloud's network for the container's address to the
// container only. The bridge must not answer them (neigh_suppress): its answer
// would be a second one, and would contain the container's MAC.
func (r *role) addPort(s *netops.Spec, in *attach.Input, o observed, ips []attach.IPConfig) {
	pair := attach.Veth.Pair(in, r.mtu(o), ips)
	pair.Up, pair.Master, pair.Port = true, o.Bridge, &netops.Port{Hairpin: true}
	s.Add(pair)
	attach.AddNoLinkLocal(s, netops.Host, in)
	s.Add(&netops.Neigh{In: netops.Host, Link: in.HostLink, MAC: in.ContainerMAC, FDB: true})
	for _, ip := range ips {
		a := ip.Address.Addr()
		s.Add(
			&netops.Neigh{In: netops.Host, Link: o.Bridge, IP: a, MAC: in.ContainerMAC, Replace: true}, // IPAM assigned this address, so an existing entry is a stale one
			&netops.Element{Set: "macnat_pods" + netops.FamilyDigit(a), Key: []string{o.Master.Name, a.String()}, Value: []string{in.ContainerMAC}, Label: in.Label},
		)
	}
	if r.conf.Mode == modeTunnel {
		s.Add(&netops.Element{Set: "macnat_tunnel", Key: []string{in.HostLink}, Value: []string{tunnelMAC}, Label: in.Label})
	}
}
