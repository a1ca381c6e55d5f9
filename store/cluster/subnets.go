package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// family has the parameters of flannel's rules for the subnets of one family: the
// default prefix length if the network is large enough, and the longest useful one.
type family struct {
	key            string
	usual, longest int
}

// subnets checks the length and the bounds, and sets defaults. By default the first subnet of a network
// is not used, because its first address is the network address.
func (d *decoder) subnets(f family, network netip.Prefix, length *int, first, last *netip.Addr) {
	switch n := network.Bits(); {
	case *length == 0 && n > f.longest-2:
		d.fault(f.key+"Network", "is %s: too small for four subnets: give /%d or larger", network, f.longest-2)
		return
	case *length == 0 && n <= f.usual-2:
		*length = f.usual
	case *length == 0:
		*length = n + 2
	case *length < n+2 || *length > f.longest:
		d.fault(f.key+"SubnetLen", "is %d: give %d to %d, so that %s holds four subnets", *length, n+2, f.longest, network)
		return
	}
	lowest := end(netip.PrefixFrom(network.Addr(), *length)).Next()
	highest := netip.PrefixFrom(end(network), *length).Masked().Addr()
	for _, b := range []struct {
		key   string
		is    *netip.Addr
		usual netip.Addr
	}{{f.key + "SubnetMin", first, lowest}, {f.key + "SubnetMax", last, highest}} {
		switch {
		case !b.is.IsValid() || b.is.IsUnspecified():
			*b.is = b.usual
		case !network.Contains(*b.is):
			d.fault(b.key, "is %s: not in %s", *b.is, network)
		case netip.PrefixFrom(*b.is, *length).Masked().Addr() != *b.is:
			d.fault(b.key, "is %s: not the first address of a /%d", *b.is, *length)
		}
	}
	if !d.failed(f.key+"SubnetMin", f.key+"SubnetMax") && last.Less(*first) {
		d.fault(f.key+"SubnetMax", "is %s: before %sSubnetMin %s", *last, f.key, *first)
	}
}

// Family returns the pod network of one family, and whether it is enabled.
func (c *Config) Family(v6 bool) (network netip.Prefix, enabled bool) {
	if v6 {
		return c.IPv6Network, c.EnableIPv6
	}
	return c.Network, c.EnableIPv4
}

// Families returns the enabled pod networks, IPv4 first.
func (c *Config) Families() (all []netip.Prefix) {
	for _, v6 := range []bool{false, true} {
		if network, enabled := c.Family(v6); enabled {
			all = append(all, network)
		}
	}
	return all
}

// Contains reports whether a node's pod network is a smaller part of the cluster's of its family.
func (c *Config) Contains(p netip.Prefix) bool {
	for _, n := range c.Families() {
		if n.Contains(p.Addr()) && p.Bits() > n.Bits() {
			return true
		}
	}
	return false
}

// Fits reports whether this configuration could assign the subnet: it has the configured length and is
// within the bounds.
func (c *Config) Fits(p netip.Prefix) bool {
	length, first, last := c.SubnetLen, c.SubnetMin, c.SubnetMax
	if !p.Addr().Is4() {
		length, first, last = c.IPv6SubnetLen, c.IPv6SubnetMin, c.IPv6SubnetMax
	}
	return c.Contains(p) && p.Bits() == length && p == p.Masked() && !p.Addr().Less(first) && !last.Less(p.Addr())
}

// choices is the number of free subnets from which a new node takes a random one. So nodes that start
// together seldom choose the same, and the network fills up from its beginning.
const choices = 100

// choose returns a random one of the first free subnets of a network, or ErrFull. A free subnet
// overlaps no held one.
func (c *Config) choose(network netip.Prefix, held []holder) (netip.Prefix, error) {
	first, last, length := c.SubnetMin, c.SubnetMax, c.SubnetLen
	if !network.Addr().Is4() {
		first, last, length = c.IPv6SubnetMin, c.IPv6SubnetMax, c.IPv6SubnetLen
	}
	used := make(map[netip.Prefix]bool, len(held))
	var larger []netip.Prefix
	for _, h := range held {
		p := h.subnet
		if same, err := p.Addr().Prefix(length); err == nil && p.Bits() >= length {
			used[same] = true
		} else if err == nil {
			larger = append(larger, p)
		}
	}
	free := make([]netip.Prefix, 0, choices)
	for at := first; at.IsValid() && !last.Less(at) && len(free) < choices; {
		p := netip.PrefixFrom(at, length)
		if i := slices.IndexFunc(larger, p.Overlaps); i >= 0 {
			at = end(larger[i]).Next()
			continue
		}
		if !used[p] {
			free = append(free, p)
		}
		at = end(p).Next()
	}
	if len(free) == 0 {
		return netip.Prefix{}, fmt.Errorf("%w: every /%d of %s is taken", ErrFull, length, network)
	}
	return free[rand.N(len(free))], nil
}

// end returns the last address of a prefix.
func end(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
