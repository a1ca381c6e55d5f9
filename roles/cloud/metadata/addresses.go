package metadata

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/store"
)

// parseAddress parses an address of a subnet's family. The second result is the reason why it is
// invalid.
func parseAddress(s string, p netip.Prefix) (netip.Addr, string) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	switch {
	case err != nil || a.Zone() != "" || a.Is4In6():
		return netip.Addr{}, "is not an address"
	case a.Is4() != p.Addr().Is4():
		return netip.Addr{}, "is of the other address family"
	case !p.Contains(a):
		return netip.Addr{}, "is outside"
	}
	return a, ""
}

// ownOf sets the node's own addresses of a subnet. links are the addresses of the node's links.
func (n *normaliser) ownOf(mac string, to *store.CloudSubnet, s *subnet, links []netip.Addr) {
	own := s.own
	if s.firstIsOwn {
		own = append(own, n.nodes(to.Prefix, s.addresses)...)
	}
	for _, text := range own {
		a, why := parseAddress(text, to.Prefix)
		switch {
		case why != "":
			n.drop("%s: the node's own %.50q of %s %s", mac, text, to.Prefix, why)
		case len(to.Own) >= maxOwn:
			n.drop("%s: the node's own %s of %s exceeds the limit", mac, a, to.Prefix)
			n.own[a] = true
		default:
			n.own[a] = true
			to.Own = append(to.Own, a)
		}
	}
	for _, a := range links {
		if to.Prefix.Contains(a) {
			to.Own = append(to.Own, a)
		}
	}
	sorting.Func(to.Own, netip.Addr.Compare)
	to.Own = slices.Compact(to.Own)
}

// nodes returns the node's own address of a list that does not mark it. If one of the node's links
// has an address of the list, n.own already knows it and the result is empty. Otherwise it is the
// first address.
func (n *normaliser) nodes(p netip.Prefix, addresses []string) []string {
	for _, text := range addresses {
		if a, why := parseAddress(text, p); why == "" && n.own[a] {
			return nil
		}
	}
	return addresses[:min(1, len(addresses))]
}

// takeRanges sets the subnets' ranges, which do not overlap.
func (n *normaliser) takeRanges(nics []nic, parsed []store.CloudNIC, raw [][]*subnet) {
	type found struct {
		p  netip.Prefix
		to *store.CloudSubnet
		of string
	}
	var all []found
	for i := range parsed {
		for j := range parsed[i].Subnets {
			to := &parsed[i].Subnets[j]
			for _, text := range raw[i][j].ranges {
				p, err := netip.ParsePrefix(strings.TrimSpace(text))
				switch {
				case err != nil || p.Addr().Is4In6():
					n.drop("%s: %.50q of %s is not a range", nics[i].mac, text, to.Prefix)
				case p != p.Masked():
					n.drop("%s: range %s of %s has host bits", nics[i].mac, p, to.Prefix)
				case !to.Prefix.Contains(p.Addr()) || p.Bits() < to.Prefix.Bits():
					n.drop("%s: range %s is outside of %s", nics[i].mac, p, to.Prefix)
				default:
					all = append(all, found{p, to, nics[i].mac})
				}
			}
		}
	}
	sorting.Stable(all, func(a, b found) int { return comparePrefix(a.p, b.p) })
	for _, f := range all {
		if len(n.ranges) > 0 && n.ranges[len(n.ranges)-1].Overlaps(f.p) {
			n.drop("%s: range %s is in %s, which is also listed", f.of, f.p, n.ranges[len(n.ranges)-1])
			continue
		}
		if n.left == 0 {
			n.drop("%s: range %s: more than %d addresses and ranges", f.of, f.p, maxAddresses)
			continue
		}
		n.left--
		n.ranges = append(n.ranges, f.p)
		f.to.Ranges = append(f.to.Ranges, f.p)
	}
}

// inRange returns the range that contains an address.
func (n *normaliser) inRange(a netip.Addr) (netip.Prefix, bool) {
	i := sort.Search(len(n.ranges), func(i int) bool {
		return cmp.Or(cmp.Compare(n.ranges[i].Addr().BitLen(), a.BitLen()), n.ranges[i].Addr().Compare(a)) > 0
	})
	if i > 0 && n.ranges[i-1].Contains(a) {
		return n.ranges[i-1], true
	}
	return netip.Prefix{}, false
}

// takeAddresses sets a subnet's single addresses.
func (n *normaliser) takeAddresses(mac string, to *store.CloudSubnet, s *subnet) {
	for _, text := range s.addresses {
		a, why := parseAddress(text, to.Prefix)
		if why == "" {
			if n.own[a] {
				continue
			}
			why = n.unusable(a, to)
		}
		if why != "" {
			n.drop("%s: %.50q of %s %s", mac, text, to.Prefix, why)
			continue
		}
		n.left--
		n.taken[a] = mac
		to.Addresses = append(to.Addresses, a)
	}
	sorting.Func(to.Addresses, netip.Addr.Compare)
}

// unusable returns the reason why a pod cannot have an address of the subnet, or "".
func (n *normaliser) unusable(a netip.Addr, to *store.CloudSubnet) string {
	wide := a.BitLen()-to.Prefix.Bits() >= 2
	switch {
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
		return "cannot be a host's address"
	case a == to.Gateway:
		return "is the gateway"
	case wide && a == to.Prefix.Addr():
		return "is the subnet's network address"
	case wide && a.Is4() && !to.Prefix.Contains(a.Next()):
		return "is the broadcast address"
	case n.left == 0:
		return "exceeds the limit"
	}
	if other, ok := n.taken[a]; ok {
		return "is listed twice, for " + other + " before"
	}
	if p, ok := n.inRange(a); ok {
		return "is in " + p.String() + ", which is also listed"
	}
	return ""
}
