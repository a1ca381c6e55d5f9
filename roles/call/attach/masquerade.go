package attach

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Masquerade holds the values of the keys with which traffic that leaves a network gets the
// node's address as its source, or another address that the node has.
type Masquerade struct {
	// On is the value of the key whose name is Key: "ipMasq".
	On      bool
	Key     string
	Backend string
	// Egress is the value of egressAddress, and Except that of egressExcept.
	Egress roles.StringList
	Except []netip.Prefix
}

// keyEgress is the key of Masquerade.Egress.
const keyEgress = "egressAddress"

// Check reports values that cannot be used.
func (m Masquerade) Check(f *roles.Faults) {
	if m.Backend != "" && m.Backend != "nftables" && m.Backend != "iptables" {
		f.Addf("ipMasqBackend", "%q is not known: use \"nftables\" or \"iptables\"", m.Backend)
	}
	if len(m.Egress) > 0 && !m.On && len(m.Except) == 0 {
		f.Addf(keyEgress, "requires %s: set %s to true, or remove egressAddress", m.Key, m.Key)
	}
	if len(m.Except) > 0 && len(m.Egress) == 0 {
		f.Addf("egressExcept", "requires egressAddress: set it, or remove egressExcept")
	}
	for i, p := range m.Except {
		if p.Addr().Is4In6() {
			f.Addf(fmt.Sprintf("egressExcept[%d]", i), "%s is not a CIDR: use the form 10.0.0.0/16", p)
		}
	}
	seen := map[bool]bool{}
	for i, text := range m.Egress {
		path := keyEgress
		if len(m.Egress) > 1 {
			path = fmt.Sprintf("%s[%d]", keyEgress, i)
		}
		a, err := roles.ParseAddr(text)
		if err == nil {
			err = checkEgress(a)
		}
		switch {
		case !f.Check(path, err):
		case seen[a.Is4()]:
			f.Addf(path, "%s is the second address of its family: give at most one IPv4 and one IPv6 address", a)
		default:
			seen[a.Is4()] = true
		}
	}
}

// checkEgress returns an error for an address that no packet to another network can have as its
// source (RFC 1122, section 3.2.1.3; RFC 3927; RFC 4291, section 2.5.6).
func checkEgress(a netip.Addr) error {
	what := ""
	switch {
	case a.IsUnspecified():
		what = "the unspecified address"
	case a.IsLoopback():
		what = "a loopback address"
	case a.IsMulticast():
		what = "a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		what = "the broadcast address"
	case a.IsLinkLocalUnicast():
		what = "a link-local address"
	default:
		return nil
	}
	return fmt.Errorf("%s is %s, with which no packet reaches another network: use an address of the node", a, what)
}

// egress returns the egressAddress of a family, or the zero Addr. Check has accepted it.
func (m Masquerade) egress(is4 bool) netip.Addr {
	for _, text := range m.Egress {
		if a, err := roles.ParseAddr(text); err == nil && a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// HasEgress reports whether there is an egressAddress of an address's family.
func (m Masquerade) HasEgress(a netip.Addr) bool { return m.egress(a.Is4()).IsValid() }

// Observe is called by the role's Observe. On ADD it logs that a configuration for iptables is
// served by nftables, and returns an error if the node does not have an egressAddress.
func (m Masquerade) Observe(ctx context.Context, h *roles.Host, in *Input) error {
	if in.Observed != nil || in.Prev != nil {
		return nil
	}
	if m.On && m.Backend == "iptables" {
		h.Log.Warn("ipMasqBackend \"iptables\" is served by nftables", "network", in.Key.Network)
	}
	return m.onNode(ctx, h)
}

// Status reports whether the node has the addresses of egressAddress. The role's Status calls it.
func (m Masquerade) Status(ctx context.Context, h *roles.Host) error {
	err := m.onNode(ctx, h)
	if err != nil {
		err = fmt.Errorf("%w: %w", roles.ErrLimited, err)
	}
	return err
}

// onNode returns an error for the first egressAddress that the node does not have.
func (m Masquerade) onNode(ctx context.Context, h *roles.Host) error {
	for _, is4 := range []bool{true, false} {
		a := m.egress(is4)
		if !a.IsValid() {
			continue
		}
		has, link, err := h.Net.HasAddress(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", keyEgress, err)
		}
		if !has {
			return fmt.Errorf("%s: %s %w on an interface of this node: run 'ip address add %s dev %s', or name another address",
				keyEgress, a, netops.ErrNotExist, netip.PrefixFrom(a, a.BitLen()), cmp.Or(link, "INTERFACE"))
		}
	}
	return nil
}

// AddTo adds one nftables element for each subnet, which the network's attachments share.
// link is the interface through which their traffic enters the host.
func (m Masquerade) AddTo(w *Desired, in *Input, link string, ips []IPConfig) error {
	for _, ip := range ips {
		if m.On {
			w.Spec.Add(&netops.Element{
				Shared: true, Set: masqueradeSet("masq", ip), Label: attachment.SharedLabel(in.Key.Network),
				Key: []string{link, ip.Address.Masked().String()},
			})
		}
		near := func(p netip.Prefix) *netops.Element {
			return &netops.Element{Shared: true, Label: attachment.SharedLabel(in.Key.Network), Key: []string{link, p.String()}}
		}
		if err := m.checkOutside(ip); err != nil {
			return err
		}
		m.addEgressTo(w, link, in.Label, ip, []netip.Prefix{ip.Address}, near)
		if m.HasEgress(ip.Address.Addr()) { // a dead container can have had the address
			w.Claims = append(w.Claims, store.Resource{Kind: "egress of", Name: ip.Address.Addr().String() + " on " + link})
		}
	}
	return nil
}

// AddPairTo adds the element of an address if the network's attachments have a pair of a kind
// each: one element for each subnet, and one of its own for an address without a subnet,
// which costs DEL a commit to nftables. On CHECK the result does not contain the subnet
// of a host address, so CHECK accepts both.
func (m Masquerade) AddPairTo(w *Desired, in *Input, kind LinkType, ip IPConfig) error {
	a := ip.Address.Addr()
	own := &netops.Element{Set: masqueradeSet("masq", ip), Label: in.Label, Key: []string{in.HostLink, netip.PrefixFrom(a, a.BitLen()).String()}}
	shared := &netops.Element{
		Shared: true, Set: masqueradeSet("masq_kind", ip), Label: attachment.SharedLabel(in.Key.Network),
		Key: []string{kind.Kind(), ip.Address.Masked().String()},
	}
	switch {
	case !m.On:
	case in.Prev != nil:
		own.Shared, own.Label, own.OrSet, own.OrKey = true, shared.Label, shared.Set, []string{kind.Kind(), own.Key[1]}
		w.Spec.Add(own)
	case ip.Address.IsSingleIP():
		w.Spec.Add(own)
	default:
		w.Spec.Add(shared)
	}
	m.AddPairEgressTo(w, in, ip, []netip.Prefix{ip.Address})
	return m.checkOutside(ip)
}

// AddPairEgressTo adds the elements that translate an address to the egressAddress, if the network's
// attachments have a pair each. near are the networks that the address reaches as without it, in
// addition to egressExcept.
func (m Masquerade) AddPairEgressTo(w *Desired, in *Input, ip IPConfig, near []netip.Prefix) {
	m.addEgressTo(w, in.HostLink, in.Label, ip, near, func(p netip.Prefix) *netops.Element {
		return &netops.Element{Label: in.Label, Key: []string{in.HostLink, p.String()}}
	})
}

// checkOutside returns an error if the egressAddress is in an address's subnet, where a container
// can get it.
func (m Masquerade) checkOutside(ip IPConfig) error {
	to := m.egress(ip.Address.Addr().Is4())
	if !ip.Address.Contains(to) {
		return nil
	}
	return &roles.ConfError{Path: keyEgress, Reason: fmt.Sprintf("%s is in the containers' own subnet %s: use an address of the node outside of it", to, ip.Address.Masked())}
}

// addEgressTo adds the elements of an address. The one that translates it belongs to the attachment:
// those of other attachments may have been made with another egressAddress. near are networks without
// it, and element returns the element of one. A single address is no network: on CHECK the result
// does not contain the subnet of a host address.
func (m Masquerade) addEgressTo(w *Desired, link, label string, ip IPConfig, near []netip.Prefix, element func(netip.Prefix) *netops.Element) {
	a := ip.Address.Addr()
	to := m.egress(a.Is4())
	if !to.IsValid() {
		return
	}
	var all []netip.Prefix
	for _, p := range near {
		if !p.IsSingleIP() {
			all = append(all, p)
		}
	}
	for _, p := range m.Except {
		if p.Addr().Is4() == a.Is4() {
			all = append(all, p)
		}
	}
	for _, p := range widest(all) {
		e := element(p)
		e.Set = masqueradeSet(netops.EgressNearSet, ip)
		w.Spec.Add(e)
	}
	w.Spec.Add(&netops.Element{Set: masqueradeSet(netops.EgressSet, ip), Key: []string{link, a.String()}, Value: []string{to.String()}, Label: label})
	// A datagram of a tracked connection keeps its source, also if the container before had another one.
	w.Spec.Add(&netops.Flows{In: netops.Host, Proto: "udp", Port: 1, End: math.MaxUint16, Src: a})
}

// widest returns prefixes without those within others, because nftables refuses such elements in one transaction.
func widest(all []netip.Prefix) (out []netip.Prefix) {
	all = slices.Clone(all)
	sorting.Stable(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, p := range all {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p.Masked())
		}
	}
	return out
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
