package metadata

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store"
)

// Limits for a reply.
const (
	// maxAddresses limits addresses and ranges together. A VNet has at most as many addresses.
	maxAddresses = 65536
	maxNICs      = 256
	maxSubnets   = 256
	maxOwn       = 256
	maxNetwork   = 64
	maxDNS       = 8
	maxDropped   = 32
	maxText      = 128
)

// normaliser converts replies to the common form.
type normaliser struct {
	// own are the node's addresses according to its links and the cloud.
	own map[netip.Addr]bool
	// taken are the addresses that are already assigned. ranges are the assigned ranges, sorted.
	taken  map[netip.Addr]string
	ranges []netip.Prefix
	// left is the number of further addresses and ranges that are accepted.
	left    int
	dropped []string
	more    int
}

// normalise returns the usable part of a cloud's reply, and the dropped parts with the reasons. own
// are the addresses of the node's links. The result does not depend on the order of the reply.
func normalise(raw []nic, own []netip.Addr) ([]store.CloudNIC, []string) {
	n := &normaliser{own: map[netip.Addr]bool{}, taken: map[netip.Addr]string{}, left: maxAddresses}
	links := make([]netip.Addr, len(own))
	for i, a := range own {
		links[i] = a.Unmap().WithZone("")
		n.own[links[i]] = true
	}
	nics := n.interfaces(raw)
	parsed := make([]store.CloudNIC, len(nics))
	for i, r := range nics {
		parsed[i] = n.describe(r)
	}
	// An own address of the node, on any interface, is never given to a pod.
	rawOf := make([][]*subnet, len(nics))
	for i, r := range nics {
		parsed[i].Subnets, rawOf[i] = n.subnets(r)
		for j := range parsed[i].Subnets {
			n.ownOf(r.mac, &parsed[i].Subnets[j], rawOf[i][j], links)
		}
	}
	n.takeRanges(nics, parsed, rawOf)
	for i, r := range nics {
		for j := range parsed[i].Subnets {
			n.takeAddresses(r.mac, &parsed[i].Subnets[j], rawOf[i][j])
		}
	}
	if n.more > 0 {
		n.dropped = append(n.dropped, fmt.Sprintf("and %d more", n.more))
	}
	return parsed, n.dropped
}

// drop notes an unused part.
func (n *normaliser) drop(format string, a ...any) {
	if len(n.dropped) >= maxDropped {
		n.more++
		return
	}
	n.dropped = append(n.dropped, fmt.Sprintf(format, a...))
}

// interfaces returns the NICs with valid MACs, sorted by number, without duplicates.
func (n *normaliser) interfaces(raw []nic) []nic {
	var nics []nic
	at := map[string]int{}
	for i, r := range raw {
		mac, err := parseMAC(strings.TrimSpace(r.mac))
		if err != nil {
			n.drop("interface %d: %v", i, err)
			continue
		}
		r.mac = mac
		if j, ok := at[mac]; ok {
			n.drop("interface %d: %s is listed twice: both are merged", i, mac)
			nics[j].subnets = slices.Concat(nics[j].subnets, r.subnets)
			continue
		}
		if len(nics) >= maxNICs {
			n.drop("interface %d: more than %d", i, maxNICs)
			continue
		}
		at[mac] = len(nics)
		nics = append(nics, r)
	}
	sorting.Stable(nics, func(a, b nic) int {
		return cmp.Or(cmp.Compare(a.device, b.device), trueFirst(a.primary, b.primary), cmp.Compare(a.mac, b.mac))
	})
	primary := false
	for i := range nics {
		if nics[i].device == unnumbered {
			nics[i].device = i
		}
		if nics[i].primary && primary {
			n.drop("%s: a second primary interface: used as a secondary one", nics[i].mac)
			nics[i].primary = false
		}
		primary = primary || nics[i].primary
	}
	return nics
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// describe returns a NIC without its subnets.
func (n *normaliser) describe(r nic) store.CloudNIC {
	c := store.CloudNIC{MAC: r.mac, ID: printable(r.id), Device: r.device, Primary: r.primary}
	if r.mtu >= 576 && r.mtu <= 65535 {
		c.MTU = r.mtu
	} else if r.mtu != 0 {
		n.drop("%s: MTU %d", r.mac, r.mtu)
	}
	for _, s := range r.network {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || len(c.Network) >= maxNetwork {
			n.drop("%s: network %.50q is not a prefix, or exceeds the limit", r.mac, s)
			continue
		}
		if p = p.Masked(); !slices.Contains(c.Network, p) {
			c.Network = append(c.Network, p)
		}
	}
	sorting.Func(c.Network, comparePrefix)
	for _, s := range r.dns {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || len(c.DNS) >= maxDNS {
			n.drop("%s: DNS server %.50q cannot be used", r.mac, s)
			continue
		}
		if !slices.Contains(c.DNS, a) {
			c.DNS = append(c.DNS, a)
		}
	}
	return c
}

// printable returns a short printable text, or "".
func printable(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return s
}

// subnets returns a NIC's subnets without duplicate prefixes, and the raw form of each.
func (n *normaliser) subnets(r nic) ([]store.CloudSubnet, []*subnet) {
	type both struct {
		to  store.CloudSubnet
		raw *subnet
	}
	var all []both
	at := map[netip.Prefix]*subnet{}
	for _, s := range r.subnets {
		p, err := netip.ParsePrefix(strings.TrimSpace(s.prefix))
		switch {
		case err != nil:
			n.drop("%s: %.50q is not a subnet: its %d addresses are not used", r.mac, s.prefix, len(s.addresses)+len(s.ranges))
			continue
		case p.Addr().Is4In6() || slices.ContainsFunc(reservedPrefixes(), p.Overlaps):
			n.drop("%s: subnet %s cannot be used", r.mac, p)
			continue
		case p != p.Masked():
			n.drop("%s: subnet %s has host bits: used as %s", r.mac, p, p.Masked())
			p = p.Masked()
		}
		if same, ok := at[p]; ok {
			same.own, same.addresses, same.ranges = append(same.own, s.own...), append(same.addresses, s.addresses...), append(same.ranges, s.ranges...)
			continue
		}
		if len(all) >= maxSubnets {
			n.drop("%s: subnet %s: more than %d", r.mac, p, maxSubnets)
			continue
		}
		copied := s
		copied.own, copied.addresses, copied.ranges = slices.Clone(s.own), slices.Clone(s.addresses), slices.Clone(s.ranges)
		at[p] = &copied
		all = append(all, both{store.CloudSubnet{Prefix: p, Gateway: n.gateway(r.mac, p, s.gateway)}, &copied})
	}
	sorting.Func(all, func(a, b both) int { return comparePrefix(a.to.Prefix, b.to.Prefix) })
	list, raw := make([]store.CloudSubnet, len(all)), make([]*subnet, len(all))
	for i := range all {
		list[i], raw[i] = all[i].to, all[i].raw
	}
	return list, raw
}

// reservedPrefixes returns blocks that are never part of a cloud's network (RFC 6890, RFC 5771, RFC
// 4291): loopback, link-local (the metadata services' addresses), and multicast.
func reservedPrefixes() []netip.Prefix {
	v4 := func(a byte, b byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), bits)
	}
	v6 := func(a byte, b byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{a, b}), bits)
	}
	return []netip.Prefix{v4(0, 0, 8), v4(127, 0, 8), v4(169, 254, 16), v4(224, 0, 4), v6(0, 0, 96), v6(0xfe, 0x80, 10), v6(0xff, 0, 8)}
}

// gateway returns the cloud's gateway, which may be outside the subnet. Without one it returns the
// subnet's first address, which is the router in most clouds.
func (n *normaliser) gateway(mac string, p netip.Prefix, given string) netip.Addr {
	given = strings.TrimSpace(given)
	if given != "" {
		a, err := netip.ParseAddr(given)
		if err == nil && a.Is4() == p.Addr().Is4() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() {
			return a
		}
		n.drop("%s: gateway %.50q of %s cannot be used", mac, given, p)
	}
	if p.Addr().BitLen()-p.Bits() < 2 {
		return netip.Addr{}
	}
	return p.Addr().Next()
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
