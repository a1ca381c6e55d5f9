package routed

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

// addSNAT adds the source NAT of packets to destinations outside the pod's
// network. There is one shared element for each prefix of the network; the
// first attachment creates it. An address without a known network gets its own
// element, so its DEL needs an nftables transaction. On CHECK the result does
// not contain the subnet, so CHECK accepts both kinds of element.
func (r *role) addSNAT(s *netops.Spec, in *attach.Input, o *observed, ips []attach.IPConfig) {
	w := snat{Spec: s, in: in, links: r.conf.HostVethPrefix + "*", made: map[string]bool{}}
	for _, ip := range ips {
		a := ip.Address.Addr()
		network := o.nicOf(a).Network
		if !r.masquerades(a, network) {
			continue
		}
		for _, p := range sameFamily(r.conf.noSNATPrefixes(), a) {
			w.addShared("routed_near", p)
		}
		if len(network) == 0 && !ip.Address.IsSingleIP() {
			network = []netip.Prefix{ip.Address.Masked()}
		}
		if len(network) == 0 {
			w.addSingle(a)
		}
		for _, p := range network {
			w.addShared("routed", p)
			w.addShared("routed_near", p)
			if o.Uplink != "" {
				w.addShared("routed_out", p)
			}
		}
	}
}

// masquerades reports whether source NAT applies to an address. network is the
// known prefixes of its network.
func (r *role) masquerades(a netip.Addr, network []netip.Prefix) bool {
	if r.conf.SNAT != nil {
		return *r.conf.SNAT
	}
	return a.Is4() && len(network) > 0
}

// noSNATPrefixes are the networks that pods reach with their own addresses in
// addition to the cloud's.
func (c *Conf) noSNATPrefixes() []netip.Prefix {
	all := prefixes(new(roles.Faults), "", c.NoSNAT)
	for i := range c.Uplinks {
		all = append(all, c.Uplinks[i].subnets()...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// snat adds each element to a Spec once.
type snat struct {
	*netops.Spec
	in *attach.Input
	// links is the name pattern of the pods' interfaces on the host.
	links string
	made  map[string]bool
}

func (w *snat) addShared(set string, p netip.Prefix) {
	e := &netops.Element{Shared: true, Set: set + suffix(p.Addr()), Key: []string{w.links, p.String()}, Label: sharedLabel(w.in)}
	if text := e.String(); !w.made[text] {
		w.made[text] = true
		w.Add(e)
	}
}

// addSingle adds the element of one address.
func (w *snat) addSingle(a netip.Addr) {
	e := &netops.Element{Set: "routed" + suffix(a), Key: []string{w.in.HostLink, single(a).String()}, Label: w.in.Label}
	if w.in.Prev != nil {
		e.Shared, e.Label = true, sharedLabel(w.in)
	}
	w.Add(e)
}

// suffix is the end of the names of a family's sets.
func suffix(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// sharedLabel is the label of the objects that the network's attachments share.
func sharedLabel(in *attach.Input) string { return record.SharedLabel(in.Key.Network) }
