package cloudsim

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/store"
)

// many is the number of surplus addresses.
const many = 10000

// viewKinds returns the faults that change the cloud's data about the node.
func viewKinds() []*kind {
	form := func(m macForm) func(*view) { return func(v *view) { v.mac = m } }
	return []*kind{
		{name: "nothing", help: "no interface at all, in the cloud's own form", see: func(v *view) { v.nics = nil }},
		{name: "only-primary", help: "the node's own addresses and none for pods", see: eachSubnet(func(s *store.CloudSubnet) {
			s.Addresses, s.Ranges = nil, nil
		})},
		{name: "ipv6-only", help: "no IPv4 subnet", see: func(v *view) {
			for i := range v.nics {
				n := &v.nics[i]
				n.Subnets = slices.DeleteFunc(n.Subnets, func(s store.CloudSubnet) bool { return s.Prefix.Addr().Is4() })
			}
		}},
		{name: "mac-lower", help: "MACs as 000d3a51c490", see: form(macPlain)},
		{name: "mac-colons", help: "MACs as 00:0d:3a:51:c4:90", see: form(macColons)},
		{name: "mac-dashes", help: "MACs as 00-0D-3A-51-C4-90", see: form(macDashes)},
		{name: "mac-any", help: "\"*\" for every MAC", see: form(macAny)},
		{name: "unknown-mac", help: "the first interface has a MAC that the node does not have", see: func(v *view) {
			if len(v.nics) > 0 {
				v.nics[0].MAC = "02:00:5e:00:53:fe"
			}
		}},
		{name: "host-bits", help: "subnets as 10.240.0.35/16", see: eachSubnet(func(s *store.CloudSubnet) {
			if all := held(s); len(all) > 0 {
				s.Prefix = netip.PrefixFrom(all[0], s.Prefix.Bits())
			}
		})},
		{name: "prefix-32", help: "subnets of the node's own address alone, /32 or /128", see: eachSubnet(func(s *store.CloudSubnet) {
			if all := held(s); len(all) > 0 {
				s.Prefix = netip.PrefixFrom(all[0], all[0].BitLen())
			}
		})},
		{name: "outside", help: "an additional address outside of its subnet", see: eachSubnet(func(s *store.CloudSubnet) {
			s.Addresses = append(s.Addresses, shift(s.Prefix.Masked()).Addr().Next())
		})},
		{name: "same-subnet", help: "an additional interface in the first one's subnet", see: sameSubnet},
		{name: "duplicate", help: "each subnet's first address for pods twice", see: eachSubnet(func(s *store.CloudSubnet) {
			if len(s.Addresses) > 0 {
				s.Addresses = append(s.Addresses, s.Addresses[0])
			}
		})},
		{name: "many", help: "10,000 addresses", see: crowd},
		{name: "token-once", help: "a token is good for one request (aws, alibaba)", see: func(v *view) { v.tokenOnce = true }},
	}
}

// eachSubnet changes every subnet.
func eachSubnet(change func(*store.CloudSubnet)) func(*view) {
	return func(v *view) {
		for i := range v.nics {
			for j := range v.nics[i].Subnets {
				change(&v.nics[i].Subnets[j])
			}
		}
	}
}

// sameSubnet adds a NIC with the last addresses of the first NIC's subnets.
func sameSubnet(v *view) {
	if len(v.nics) == 0 {
		return
	}
	n := store.CloudNIC{MAC: "02:00:5e:00:53:01", Device: len(v.nics), MTU: v.nics[0].MTU, Network: v.nics[0].Network}
	for _, s := range v.nics[0].Subnets {
		last := shift(s.Prefix.Masked()).Addr().Prev().Prev()
		n.Subnets = append(n.Subnets, store.CloudSubnet{Prefix: s.Prefix, Gateway: s.Gateway, Own: []netip.Addr{last}, Addresses: []netip.Addr{last.Prev()}})
	}
	v.nics = append(v.nics, n)
}

// crowd fills the first IPv4 subnet, which becomes a /16 if it is smaller.
func crowd(v *view) {
	if len(v.nics) == 0 {
		return
	}
	s := subnet(&v.nics[0], false)
	if s == nil {
		return
	}
	s.Prefix = netip.PrefixFrom(s.Prefix.Addr(), min(s.Prefix.Bits(), 16)).Masked()
	s.Addresses = nil
	for a := step(s.Prefix.Addr(), 4); len(s.Addresses) < many; a = a.Next() {
		if a != s.Gateway && !slices.Contains(s.Own, a) {
			s.Addresses = append(s.Addresses, a)
		}
	}
}
