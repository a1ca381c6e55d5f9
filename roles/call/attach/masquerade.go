package attach

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Masquerade holds the values of the keys ipMasq and ipMasqBackend. Traffic that leaves a
// network gets the node's address as its source.
type Masquerade struct {
	On      bool
	Backend string
}

// Check reports an unknown backend.
func (m Masquerade) Check(f *roles.Faults) {
	if m.Backend != "" && m.Backend != "nftables" && m.Backend != "iptables" {
		f.Addf("ipMasqBackend", "%q is not known: use \"nftables\" or \"iptables\"", m.Backend)
	}
}

// Warn logs, once in an ADD, that a configuration for iptables is served by nftables.
// Observe calls it.
func (m Masquerade) Warn(h *roles.Host, in *Input) {
	if m.On && m.Backend == "iptables" && in.Observed == nil && in.Prev == nil {
		h.Log.Warn("ipMasqBackend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
}

// AddTo adds one nftables element for each subnet, which the network's attachments share.
// link is the interface through which their traffic enters the host.
func (m Masquerade) AddTo(s *netops.Spec, in *Input, link string, ips []IPConfig) {
	if !m.On {
		return
	}
	for _, ip := range ips {
		s.Add(&netops.Element{
			Shared: true, Set: masqueradeSet("masq", ip), Label: attachment.SharedLabel(in.Key.Network),
			Key: []string{link, ip.Address.Masked().String()},
		})
	}
}

// AddVethTo adds the element of an address if the network's attachments have a veth
// each: one element for each subnet, and one of its own for an address without a subnet,
// which costs DEL a commit to nftables. On CHECK the result does not contain the subnet
// of a host address, so CHECK accepts both.
func (m Masquerade) AddVethTo(s *netops.Spec, in *Input, ip IPConfig) {
	if !m.On {
		return
	}
	a := ip.Address.Addr()
	own := &netops.Element{Set: masqueradeSet("masq", ip), Label: in.Label, Key: []string{in.HostLink, netip.PrefixFrom(a, a.BitLen()).String()}}
	shared := &netops.Element{
		Shared: true, Set: masqueradeSet("masq_kind", ip), Label: attachment.SharedLabel(in.Key.Network),
		Key: []string{"veth", ip.Address.Masked().String()},
	}
	switch {
	case in.Prev != nil:
		own.Shared, own.Label, own.OrSet, own.OrKey = true, shared.Label, shared.Set, []string{"veth", own.Key[1]}
		s.Add(own)
	case ip.Address.IsSingleIP():
		s.Add(own)
	default:
		s.Add(shared)
	}
}

// masqueradeSet returns the name of the nftables set for an address's family.
func masqueradeSet(name string, ip IPConfig) string {
	return name + netops.FamilyDigit(ip.Address.Addr())
}

// AddForwarding enables IP forwarding in a namespace for the families that have a
// gateway.
func AddForwarding(s *netops.Spec, in netops.Place, ips []IPConfig) {
	var v4, v6 bool
	for _, ip := range ips {
		v4, v6 = v4 || ip.Gateway.Is4(), v6 || ip.Gateway.Is6()
	}
	if v4 {
		s.Add(&netops.Sysctl{In: in, Shared: true, Key: "net/ipv4/ip_forward", Value: "1"})
	}
	if v6 {
		s.Add(&netops.Sysctl{In: in, Shared: true, Key: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
}
