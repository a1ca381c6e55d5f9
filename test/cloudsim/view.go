package cloudsim

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// view is the model as one request sees it: faults may have changed it. What it
// shares with the model is never written to.
type view struct {
	nics []store.CloudNIC
	// mac is how MACs are written; nil as the provider does.
	mac macForm
	// tokenOnce: each token is good for one request.
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

// anyMAC stands for any interface.
const anyMAC = "*"

// write writes a NIC's MAC in the view's form, else in form. What is no MAC, as the
// "*" for any interface, stays.
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

// subnet is the NIC's first subnet of a family, or nil: most clouds have but one.
func subnet(n *store.CloudNIC, v6 bool) *store.CloudSubnet {
	for i := range n.Subnets {
		if n.Subnets[i].Prefix.Addr().Is6() == v6 {
			return &n.Subnets[i]
		}
	}
	return nil
}

// held are all single addresses of a subnet, the node's own before.
func held(s *store.CloudSubnet) []netip.Addr {
	if s == nil {
		return nil
	}
	return slices.Concat(s.Own, s.Addresses)
}

// ranges are the prefixes of a subnet.
func ranges(s *store.CloudSubnet) []netip.Prefix {
	if s == nil {
		return nil
	}
	return s.Ranges
}

// prefixText is a subnet's prefix; no subnet has none.
func prefixText(s *store.CloudSubnet) string {
	if s == nil {
		return ""
	}
	return s.Prefix.String()
}

// gateway is a subnet's, else the first address after the network's, as most clouds
// have it.
func gateway(s *store.CloudSubnet) netip.Addr {
	if s.Gateway.IsValid() {
		return s.Gateway
	}
	return s.Prefix.Masked().Addr().Next()
}

// first is the text of the first element, "" without one.
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

// ofFamily are the prefixes of IPv4 or IPv6.
func ofFamily(all []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			out = append(out, p)
		}
	}
	return out
}

// netmask is a prefix's length as a mask: 255.255.0.0, or ffff:ffff::.
func netmask(p netip.Prefix) string {
	bits := p.Addr().BitLen()
	m := net.CIDRMask(p.Bits(), bits)
	a, _ := netip.AddrFromSlice(m)
	return a.String()
}

// id is a cloud's name of something that the model has none of.
func id(kind string, n *store.CloudNIC, at int) string {
	if n.ID != "" && kind == "eni" {
		return n.ID
	}
	return fmt.Sprintf("%s-%017x", kind, 0x123456789ab0000+at)
}
