package cloudsim

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// view is the model with the changes of faults, for one request. The parts that it shares with the model are not changed.
type view struct {
	nics []store.CloudNIC
	// mac is the form of MACs; nil is the provider's.
	mac macForm
	// tokenOnce means that each token is valid for one request.
	tokenOnce bool
}

// macForm writes a MAC.
type macForm func(net.HardwareAddr) string

func macColons(m net.HardwareAddr) string { return m.String() }

func macUpper(m net.HardwareAddr) string { return strings.ToUpper(macPlain(m)) }

func macPlain(m net.HardwareAddr) string { return fmt.Sprintf("%x", []byte(m)) }

func macUpperColons(m net.HardwareAddr) string { return strings.ToUpper(m.String()) }

func macDashes(m net.HardwareAddr) string {
	return strings.ToUpper(strings.ReplaceAll(m.String(), ":", "-"))
}

func macAny(net.HardwareAddr) string { return anyMAC }

// anyMAC matches any interface.
const anyMAC = "*"

// write writes a NIC's MAC in the view's form, else in form. A text that is not a MAC, such as "*", is unchanged.
func (v *view) write(n *store.CloudNIC, form macForm) string {
	m, err := net.ParseMAC(n.MAC)
	if err != nil {
		return n.MAC
	}
	if v.mac != nil {
		form = v.mac
	}
	return form(m)
}

// subnet returns the NIC's first subnet of a family, or nil: most clouds have only one.
func subnet(n *store.CloudNIC, v6 bool) *store.CloudSubnet {
	for i := range n.Subnets {
		if n.Subnets[i].Prefix.Addr().Is6() == v6 {
			return &n.Subnets[i]
		}
	}
	return nil
}

// held returns all single addresses of a subnet, the node's own first.
func held(s *store.CloudSubnet) []netip.Addr {
	if s == nil {
		return nil
	}
	return slices.Concat(s.Own, s.Addresses)
}

// ranges returns the prefixes of a subnet.
func ranges(s *store.CloudSubnet) []netip.Prefix {
	if s == nil {
		return nil
	}
	return s.Ranges
}

// prefixText returns a subnet's prefix, or an empty text for nil.
func prefixText(s *store.CloudSubnet) string {
	if s == nil {
		return ""
	}
	return s.Prefix.String()
}

// gateway returns a subnet's gateway, else its first address, as most clouds have it.
func gateway(s *store.CloudSubnet) netip.Addr {
	if s.Gateway.IsValid() {
		return s.Gateway
	}
	return s.Prefix.Masked().Addr().Next()
}

// first returns the text of the first element, or "".
func first[T fmt.Stringer](all []T) string {
	if len(all) == 0 {
		return ""
	}
	return all[0].String()
}

func texts[T fmt.Stringer](all []T) []string {
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = one.String()
	}
	return out
}

func lines[T fmt.Stringer](all []T) string { return strings.Join(texts(all), "\n") }

// ofFamily returns the prefixes of IPv4 or IPv6.
func ofFamily(all []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			out = append(out, p)
		}
	}
	return out
}

// netmask returns a prefix's length as a mask: 255.255.0.0, or ffff:ffff::.
func netmask(p netip.Prefix) string {
	bits := p.Addr().BitLen()
	m := net.CIDRMask(p.Bits(), bits)
	a, _ := netip.AddrFromSlice(m)
	return a.String()
}

// id returns a cloud's identifier for an object that has none in the model.
func id(kind string, n *store.CloudNIC, at int) string {
	if n.ID != "" && kind == "eni" {
		return n.ID
	}
	return fmt.Sprintf("%s-%017x", kind, 0x123456789ab0000+at)
}
