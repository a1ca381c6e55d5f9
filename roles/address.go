package roles

import (
	"fmt"
	"net"
	"net/netip"
)

// ParseAddr parses an IP address. An IPv4-mapped IPv6 address becomes IPv4; a zone is an
// error.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// ParseAddrOrCIDR parses an IP address, with or without a prefix length, and returns the
// address alone.
func ParseAddrOrCIDR(s string) (netip.Addr, error) {
	if a, err := ParseAddr(s); err == nil {
		return a, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.80q is neither an IP address nor a CIDR", s)
	}
	return p.Addr().Unmap(), nil
}

// DefaultDst returns the destination of an address family's default route.
func DefaultDst(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// IPNet converts an address with its prefix length to the type that CNI results use.
func IPNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// CheckNetwork returns an error for a network that contains addresses no container can
// have: the unspecified ones and the rest of "this network" (RFC 1122, section 3.2.1.3),
// loopback (RFC 1122; RFC 4291, section 2.5.3) and multicast (RFC 5771; RFC 4291, section
// 2.7).
func CheckNetwork(p netip.Prefix) error {
	for _, r := range []struct{ prefix, what string }{
		{"0.0.0.0/8", "\"this network\""},
		{"127.0.0.0/8", "loopback"},
		{"224.0.0.0/4", "multicast"},
		{"::/128", "the unspecified address"},
		{"::1/128", "loopback"},
		{"ff00::/8", "multicast"},
	} {
		reserved := netip.MustParsePrefix(r.prefix)
		switch {
		case !p.Overlaps(reserved):
		case p.Bits() < reserved.Bits():
			return fmt.Errorf("%s contains %s (%s), which no container can have: use a network of your own, such as 10.1.0.0/16 or fd00:1::/64", p, reserved, r.what)
		default:
			return fmt.Errorf("%s is in %s (%s), which no container can have: use a network of your own, such as 10.1.0.0/16 or fd00:1::/64", p, reserved, r.what)
		}
	}
	return nil
}
