package routed

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// addSNAT adds the source NAT of packets to destinations outside the pod's
// network. There is one shared element for each prefix of the network; the
// first attachment creates it. An address without a known network gets its own
// elements, so its DEL needs an nftables transaction. On CHECK the result does
// not contain the subnet, so CHECK accepts both kinds of element. An address with an
// egressAddress has elements of its own, and needs the shared ones only to leave by
// the first of several NICs.
func (r *role) addSNAT(d *attach.Desired, in *attach.Input, o *observed, ips []attach.IPConfig) {
	w := snat{Spec: &d.Spec, in: in, conf: r.conf, made: map[string]bool{}}
	for _, ip := range ips {
		a := ip.Address.Addr()
		network := o.nicOf(a).Network
		isMasqueraded, hasEgress := r.masquerades(a, network), r.conf.masquerade().HasEgress(a)
		if len(network) == 0 && !ip.Address.IsSingleIP() {
			network = []netip.Prefix{ip.Address.Masked()}
		}
		near := sameFamily(r.conf.noSNATPrefixes(), a)
		r.conf.masquerade().AddPairEgressTo(d, in, ip, slices.Concat(near, network))
		if !isMasqueraded && (!hasEgress || o.Uplink == "" || len(network) == 0) {
			continue
		}
		add := w.addShared
		if len(network) == 0 {
			add = w.addOwn
			add("", single(a))
		}
		for _, p := range near {
			add("_near", p)
		}
		for _, p := range network {
			if isMasqueraded {
				add("", p)
			}
			add("_near", p)
			if o.Uplink != "" {
				add("_out", p)
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
		all = append(all, c.Uplinks[i].parsedSubnets()...)
	}
	sorting.Func(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// snat adds each element to a Spec once.
type snat struct {
	*netops.Spec
	in   *attach.Input
	conf *Conf
	made map[string]bool
}

// addShared adds the element of a prefix in a set: "", "_near" or "_out". The prefixes of
// the interfaces' names keep networks apart. CHECK also accepts a name pattern, which older
// versions used.
func (w *snat) addShared(set string, p netip.Prefix) {
	set += netops.FamilyDigit(p.Addr())
	e := &netops.Element{Shared: true, Label: sharedLabel(w.in), OrSet: "routed" + set, OrKey: []string{w.in.HostLink, p.String()}}
	e.Set, e.Key = w.conf.sharedKey(set, p)
	w.add(e)
}

// sharedKey returns the set of the network's element, and its key.
func (c *Conf) sharedKey(set string, p netip.Prefix) (name string, key []string) {
	if group := c.devGroup(); group != 0 {
		return "routed_group" + set, []string{fmt.Sprintf("%#x", group), p.String()}
	}
	return "routed_kind" + set, []string{c.LinkType.Kind(), p.String()}
}

// devGroup returns the group of the pods' interfaces on the host, in which nftables
// recognizes them: the bytes of HostVethPrefix. The default prefix needs none.
func (c *Conf) devGroup() (group uint32) {
	if c.HostVethPrefix == attachment.HostLinkPrefix {
		return 0
	}
	for _, b := range []byte(c.HostVethPrefix) {
		group = group<<8 | uint32(b)
	}
	return group
}

// addOwn adds an element for this attachment only.
func (w *snat) addOwn(set string, p netip.Prefix) {
	set += netops.FamilyDigit(p.Addr())
	e := &netops.Element{Set: "routed" + set, Key: []string{w.in.HostLink, p.String()}, Label: w.in.Label}
	if w.in.Prev != nil {
		e.Shared, e.Label = true, sharedLabel(w.in)
		e.OrSet, e.OrKey = w.conf.sharedKey(set, p)
	}
	w.add(e)
}

func (w *snat) add(e *netops.Element) {
	if text := e.String(); !w.made[text] {
		w.made[text] = true
		w.Add(e)
	}
}

// sharedLabel is the label of the objects that the network's attachments share.
func sharedLabel(in *attach.Input) string { return attachment.SharedLabel(in.Key.Network) }
