package firewall

import (
	"errors"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// Build computes the rules of one attachment; prevResult is handed on.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("firewall: was not observed")
	}
	ips, err := attach.Addresses(in.Chained)
	if err != nil {
		return nil, err
	}
	w := &attach.Desired{}
	if err := r.wirePolicy(&w.Spec, in, &o); err != nil {
		return nil, err
	}
	for _, ip := range ips {
		r.wireForward(&w.Spec, in, &o, ip.Address)
		if r.conf.Backend == firewalld || r.conf.Backend == auto && o.policy(ip.Address.Addr().Is4()).Firewalld {
			w.Spec.Add(&netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: ip.Address.Addr()})
		}
	}
	return w, nil
}

// wirePolicy closes the device that leads to the container. Frames that a bridge
// passes between its ports are forwarded by no chain unless br_netfilter is
// there, so a port of an isolated network is isolated itself.
func (r *role) wirePolicy(s *netops.Spec, in *attach.Input, o *observed) error {
	if r.conf.IngressPolicy == open {
		return nil
	}
	if o.Link == "" {
		return &roles.ConfError{
			Path:   "ingressPolicy",
			Reason: "\"" + r.conf.IngressPolicy + "\" needs to know the host's interface, and prevResult names none that is there: put firewall behind \"bridge\" or \"ptp\"",
		}
	}
	among := "fw_same"
	if r.conf.IngressPolicy == isolated {
		among = "fw_isolated"
	}
	label := in.Label
	if o.Bridge {
		label = record.SharedLabel(in.Key.Network)
	}
	s.Add(
		&netops.Element{Shared: o.Bridge, Set: among, Key: []string{o.Link, o.Link}, Label: label},
		&netops.Element{Shared: o.Bridge, Set: "fw_closed", Key: []string{o.Link}, Label: label},
	)
	if r.conf.IngressPolicy == isolated && o.Port != "" {
		s.Add(&netops.Link{In: netops.Host, Name: o.Port, Port: &netops.Port{Hairpin: o.Hairpin, Isolated: true}})
	}
	return nil
}

// wireForward has iptables' filter table let the container's traffic pass where
// it is asked to, or would drop it. What tells the network's containers by their
// device and subnet is there once for all of them.
func (r *role) wireForward(s *netops.Spec, in *attach.Input, o *observed, address netip.Prefix) {
	if !r.conf.accepts(iptables) || r.conf.Backend == auto && o.Link == "" {
		return
	}
	f := netops.Forward{
		Shared: true, Link: o.pattern(), Net: address.Masked(),
		Admin: r.conf.IptablesAdminChainName, Label: record.SharedLabel(in.Key.Network),
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
