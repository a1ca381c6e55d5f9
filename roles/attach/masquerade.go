package attach

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
)

// Masquerade is the value of the keys ipMasq and ipMasqBackend: traffic that leaves a
// network gets the node's address.
type Masquerade struct {
	On      bool
	Backend string
}

// Check reports a backend that does not exist.
func (m Masquerade) Check(f *roles.Faults) {
	if m.Backend != "" && m.Backend != "nftables" && m.Backend != "iptables" {
		f.Addf("ipMasqBackend", "%q is not known: use \"nftables\"", m.Backend)
	}
}

// Warn logs, once an ADD, that nftables serves a configuration for iptables. Call it
// in Observe.
func (m Masquerade) Warn(h *roles.Host, in *Input) {
	if m.On && m.Backend == "iptables" && in.Observed == nil && in.Prev == nil {
		h.Log.Warn("ipMasqBackend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
}

// AddTo adds one entry for each subnet, which the network's attachments share. link is
// the interface through which their traffic enters the host: a name, or a pattern "name*".
func (m Masquerade) AddTo(s *netops.Spec, in *Input, link string, ips []Family) {
	if !m.On {
		return
	}
	for _, ip := range ips {
		s.Add(&netops.Element{
			Shared: true, Set: masqueradeSet(ip), Label: record.SharedLabel(in.Key.Network),
			Key: []string{link, ip.Address.Masked().String()},
		})
	}
}

// AddOwnTo adds an entry for the attachment alone, if its address is not in a subnet.
// Its DEL deletes the entry, which costs a commit to nftables.
func (m Masquerade) AddOwnTo(s *netops.Spec, in *Input, link string, ip Family) {
	if m.On {
		s.Add(&netops.Element{Set: masqueradeSet(ip), Label: in.Label, Key: []string{link, ip.Address.String()}})
	}
}

// masqueradeSet is the nftables set of an address's family.
func masqueradeSet(ip Family) string {
	if ip.Address.Addr().Is4() {
		return "masq4"
	}
	return "masq6"
}

// Forwarding enables IP forwarding on the host for the families that have a gateway.
func Forwarding(s *netops.Spec, ips []Family) { forwarding(s, netops.Host, ips) }

func forwarding(s *netops.Spec, in netops.Place, ips []Family) {
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
