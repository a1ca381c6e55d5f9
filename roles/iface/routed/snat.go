package routed

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// wireSNAT hides pods behind the node from what is not of their network: one element a
// prefix of the network, made by the first attachment. An address of which no network
// is known has one of its own, at the price of a commit to nftables in its DEL. CHECK,
// to which prevResult does not tell the subnet, asks for either.
func (r *role) wireSNAT(s *netops.Spec, in *attach.Input, o *observed, ips []attach.Family) {
	w := snat{Spec: s, in: in, links: r.conf.HostVethPrefix + "*", made: map[string]bool{}}
	for _, ip := range ips {
		a := ip.Address.Addr()
		network := o.of(a).Network
		if !r.translates(a, network) {
			continue
		}
		for _, p := range sameFamily(r.conf.near(), a) {
			w.shared("routed_near", p)
		}
		if len(network) == 0 && !ip.Address.IsSingleIP() {
			network = []netip.Prefix{ip.Address.Masked()}
		}
		if len(network) == 0 {
			w.single(a)
		}
		for _, p := range network {
			w.shared("routed", p)
			w.shared("routed_near", p)
			if o.Uplink != "" {
				w.shared("routed_out", p)
			}
		}
	}
}

// translates tells whether an address is hidden, of which the network's prefixes are
// known or not.
func (r *role) translates(a netip.Addr, network []netip.Prefix) bool {
	if r.conf.SNAT != nil {
		return *r.conf.SNAT
	}
	return a.Is4() && len(network) > 0
}

// near are the networks that pods reach with their own addresses whatever the cloud
// says.
func (c *Conf) near() []netip.Prefix {
	all := prefixes(new(roles.Faults), "", c.NoSNAT)
	for i := range c.Uplinks {
		all = append(all, c.Uplinks[i].subnets()...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// snat adds elements to a Spec, each once.
type snat struct {
	*netops.Spec
	in *attach.Input
	// links is the pattern of the pods' interfaces on the host.
	links string
	made  map[string]bool
}

func (w *snat) shared(set string, p netip.Prefix) {
	e := &netops.Element{Shared: true, Set: set + suffix(p.Addr()), Key: []string{w.links, p.String()}, Label: sharedLabel(w.in)}
	if text := e.String(); !w.made[text] {
		w.made[text] = true
		w.Add(e)
	}
}

// single is the element of one address.
func (w *snat) single(a netip.Addr) {
	e := &netops.Element{Set: "routed" + suffix(a), Key: []string{w.in.HostLink, single(a).String()}, Label: w.in.Label}
	if w.in.Prev != nil {
		e.Shared, e.Label = true, sharedLabel(w.in)
	}
	w.Add(e)
}

// suffix is how the names of a family's sets end.
func suffix(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// sharedLabel is the owner of what the network's attachments share.
func sharedLabel(in *attach.Input) string { return record.SharedLabel(in.Key.Network) }
