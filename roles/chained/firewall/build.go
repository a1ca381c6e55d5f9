package firewall

import (
	"errors"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// Build computes the rules of one attachment. The result is prevResult.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	ips, err := attach.Addresses(in.Chained)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{}
	if err := r.addPolicy(&w.Spec, in, &o); err != nil {
		return nil, err
	}
	for _, ip := range ips {
		r.addForward(&w.Spec, in, &o, ip.Address)
		if r.conf.Backend == firewalld || r.conf.Backend == auto && o.policy(ip.Address.Addr().Is4()).Firewalld {
			w.Spec.Add(&netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: ip.Address.Addr()})
		}
	}
	return w, nil
}

// addPolicy adds the ingress policy to the host's device of the container.
// Frames between ports of a bridge do not pass the forward chain without
// br_netfilter, so an isolated network's ports get the bridge port flag
// "isolated" too.
func (r *role) addPolicy(s *netops.Spec, in *attach.Input, o *observed) error {
	if r.conf.IngressPolicy == open {
		return nil
	}
	if o.Link == "" {
		return &roles.ConfError{
			Path:   "ingressPolicy",
			Reason: "\"" + r.conf.IngressPolicy + "\" requires an interface of the host, and prevResult has none that exists: put firewall after \"bridge\" or \"ptp\"",
		}
	}
	setName := "fw_same"
	if r.conf.IngressPolicy == isolated {
		setName = "fw_isolated"
	}
	label := in.Label
	if o.Bridge {
		label = attachment.SharedLabel(in.Key.Network)
	}
	s.Add(
		&netops.Element{Shared: o.Bridge, Set: setName, Key: []string{o.Link, o.Link}, Label: label},
		&netops.Element{Shared: o.Bridge, Set: "fw_closed", Key: []string{o.Link}, Label: label},
	)
	if r.conf.IngressPolicy == isolated && o.Port != "" {
		s.Add(&netops.Link{In: netops.Host, Name: o.Port, Port: &netops.Port{Hairpin: o.Hairpin, Isolated: true}})
	}
	return nil
}

// addForward adds rules to iptables' filter table that accept the container's
// traffic, if the backend is "iptables" or the table would drop it. If the
// device and the subnet identify all containers of the network, they share the
// rules.
func (r *role) addForward(s *netops.Spec, in *attach.Input, o *observed, address netip.Prefix) {
	if !r.conf.usesBackend(iptables) || r.conf.Backend == auto && o.Link == "" {
		return
	}
	f := netops.Forward{
		Shared: true, Link: o.pattern(), Net: address.Masked(),
		Admin: r.conf.IptablesAdminChainName, Label: attachment.SharedLabel(in.Key.Network),
	}
	if f.Link == "" || address.IsSingleIP() {
		f.Shared, f.Link, f.Label = false, o.Link, in.Label
		f.Net = netip.PrefixFrom(address.Addr(), address.Addr().BitLen())
	}
	policy := o.policy(address.Addr().Is4())
	if r.conf.Backend == iptables || policy.Refused {
		native := f
		s.Add(&native)
	}
	if policy.RefusedLegacy {
		f.Legacy = true
		s.Add(&f)
	}
}
