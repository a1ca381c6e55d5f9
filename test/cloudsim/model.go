package cloudsim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store"
)

// maxNode bounds the description of a node, in bytes.
const maxNode = 16 << 20

// readNode reads a node's description: a JSON array of store.CloudNIC. Its content may be wrong, since clients must survive that.
func readNode(path string) ([]store.CloudNIC, error) {
	b, err := smallfile.Read(path, maxNode)
	if err != nil {
		return nil, err
	}
	var nics []store.CloudNIC
	if err := json.Unmarshal(b, &nics); err != nil {
		return nil, fmt.Errorf("read node %q: %w", path, err)
	}
	return append([]store.CloudNIC{}, nics...), nil // nil is the article's node
}

// sketch is a node described by flags.
type sketch struct {
	nics, addresses, prefixes int
	// subnet and own are those of the first NIC; each further NIC has the next subnet.
	subnet netip.Prefix
	own    netip.Addr
	mac    net.HardwareAddr
	ipv6   bool
	mtu    int
}

// articleNode is the node of an article about AKS, the default.
func articleNode() sketch {
	return sketch{
		nics: 1, addresses: 30, subnet: netip.MustParsePrefix("10.240.0.0/16"), own: netip.MustParseAddr("10.240.0.35"),
		mac: net.HardwareAddr{0x00, 0x0d, 0x3a, 0x51, 0xc4, 0x90},
	}
}

// Limits of a sketch.
const (
	maxSketchNICs      = 64
	maxSketchAddresses = 65536
)

// draw returns the NICs of the sketch.
func (s *sketch) draw() ([]store.CloudNIC, error) {
	switch {
	case s.nics < 0 || s.nics > maxSketchNICs:
		return nil, fmt.Errorf("-nics: %d: use 0 to %d", s.nics, maxSketchNICs)
	case s.addresses < 0 || s.addresses > maxSketchAddresses:
		return nil, fmt.Errorf("-addresses: %d: use 0 to %d", s.addresses, maxSketchAddresses)
	case s.prefixes < 0 || s.prefixes > maxSketchAddresses/16:
		return nil, fmt.Errorf("-prefixes: %d: use 0 to %d", s.prefixes, maxSketchAddresses/16)
	case !s.subnet.IsValid() || !s.subnet.Addr().Is4() || s.subnet != s.subnet.Masked():
		return nil, fmt.Errorf("-subnet: %s is no IPv4 network: use one as 10.240.0.0/16", s.subnet)
	case !s.subnet.Contains(s.own):
		return nil, fmt.Errorf("-own: %s is not in %s", s.own, s.subnet)
	}
	nics := []store.CloudNIC{}
	var network []netip.Prefix
	four, own := s.subnet, s.own
	six := netip.MustParsePrefix("2001:db8:240::/64")
	for i := range s.nics {
		mac := slices.Clone(s.mac)
		mac[len(mac)-1] += byte(i)
		n := store.CloudNIC{MAC: mac.String(), ID: fmt.Sprintf("eni-%017x", 0x123456789abcdef0+i), Device: i, Primary: i == 0, MTU: s.mtu}
		with, err := s.fill(four, own, 28)
		if err != nil {
			return nil, err
		}
		n.Subnets = append(n.Subnets, *with)
		if s.ipv6 {
			with, err := s.fill(six, step(six.Addr(), 4), 80)
			if err != nil {
				return nil, err
			}
			n.Subnets = append(n.Subnets, *with)
			network = append(network, six)
		}
		nics, network = append(nics, n), append(network, four)
		four, own, six = shift(four), stepBits(own, 32-four.Bits()), shift(six)
	}
	for i := range nics {
		nics[i].Network = network
	}
	return nics, nil
}

// fill makes a subnet with its gateway, the node's own address, the addresses behind it for pods, and prefixes of a length from its
// upper half on.
func (s *sketch) fill(p netip.Prefix, own netip.Addr, bits int) (*store.CloudSubnet, error) {
	out := &store.CloudSubnet{Prefix: p, Gateway: p.Addr().Next(), Own: []netip.Addr{own}}
	for a := own; len(out.Addresses) < s.addresses; {
		if a = a.Next(); !p.Contains(a) {
			return nil, fmt.Errorf("%s has no %d addresses behind %s: use a larger -subnet, or fewer -addresses", p, s.addresses, own)
		}
		out.Addresses = append(out.Addresses, a)
	}
	at := netip.PrefixFrom(stepBits(p.Addr(), p.Addr().BitLen()-p.Bits()-1), bits)
	for range s.prefixes {
		if at.Bits() <= p.Bits() || !p.Contains(at.Addr()) {
			return nil, fmt.Errorf("%s has no %d prefixes of /%d in its upper half: use a larger -subnet, or fewer -prefixes", p, s.prefixes, bits)
		}
		out.Ranges = append(out.Ranges, at)
		at = shift(at)
	}
	return out, nil
}

// shift returns the next network of the same size.
func shift(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(stepBits(p.Addr(), p.Addr().BitLen()-p.Bits()), p.Bits())
}

// stepBits adds 2^bits to an address.
func stepBits(a netip.Addr, bits int) netip.Addr {
	b := a.AsSlice()
	add := uint(1) << (bits % 8)
	for i := len(b) - 1 - bits/8; i >= 0 && add > 0; i-- {
		add += uint(b[i])
		b[i] = byte(add)
		add >>= 8
	}
	out, _ := netip.AddrFromSlice(b)
	return out
}

// step adds a number to an address.
func step(a netip.Addr, by int) netip.Addr {
	for range by {
		a = a.Next()
	}
	return a
}

// clone copies NICs. Changing a list of a copied subnet does not change the original.
func clone(nics []store.CloudNIC) []store.CloudNIC {
	out := slices.Clone(nics)
	for i := range out {
		out[i].Subnets = slices.Clone(out[i].Subnets)
		for j := range out[i].Subnets {
			s := &out[i].Subnets[j]
			s.Own, s.Addresses, s.Ranges = slices.Clone(s.Own), slices.Clone(s.Addresses), slices.Clone(s.Ranges)
		}
	}
	return out
}

// place finds the subnet for an address or prefix: one that contains it, of the NIC with this MAC or number, or of any NIC. A
// prefix that is in no subnet, as Google's, goes to the first subnet of its family.
func place(nics []store.CloudNIC, nic string, p netip.Prefix) (*store.CloudSubnet, error) {
	var fallback *store.CloudSubnet
	var seen []string
	for i := range nics {
		if nic != "" && nic != strconv.Itoa(nics[i].Device) && !strings.EqualFold(nic, nics[i].MAC) {
			continue
		}
		for j := range nics[i].Subnets {
			s := &nics[i].Subnets[j]
			if s.Prefix.Masked().Contains(p.Addr()) {
				return s, nil
			}
			seen = append(seen, s.Prefix.String())
			if fallback == nil && !p.IsSingleIP() && s.Prefix.Addr().Is6() == p.Addr().Is6() {
				fallback = s
			}
		}
	}
	if fallback != nil {
		return fallback, nil
	}
	return nil, fmt.Errorf("%s is not in a subnet of the node, which has %s", bare(p), cmp.Or(strings.Join(seen, ", "), "none"))
}

// parseTarget reads an address or a prefix; an address becomes a prefix of full length.
func parseTarget(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%.50q is neither an address nor a prefix", s)
	}
	return p, nil
}

// bare prints a prefix, as an address if it contains only one.
func bare(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// add adds addresses and prefixes to the node.
func add(nics []store.CloudNIC, nic string, targets []netip.Prefix) error {
	for _, p := range targets {
		if holds(nics, p) {
			return fmt.Errorf("%s is the node's already", bare(p))
		}
		s, err := place(nics, nic, p)
		if err != nil {
			return err
		}
		if p.IsSingleIP() {
			s.Addresses = append(s.Addresses, p.Addr())
			slices.SortFunc(s.Addresses, netip.Addr.Compare)
		} else {
			s.Ranges = append(s.Ranges, p)
		}
	}
	return nil
}

func holds(nics []store.CloudNIC, p netip.Prefix) bool {
	for _, n := range nics {
		for _, s := range n.Subnets {
			if p.IsSingleIP() && (slices.Contains(s.Addresses, p.Addr()) || slices.Contains(s.Own, p.Addr())) || slices.Contains(s.Ranges, p) {
				return true
			}
		}
	}
	return false
}

// withdraw removes addresses and prefixes from the node.
func withdraw(nics []store.CloudNIC, targets []netip.Prefix) error {
	for _, p := range targets {
		found := false
		for i := range nics {
			for j := range nics[i].Subnets {
				s := &nics[i].Subnets[j]
				before := len(s.Addresses) + len(s.Ranges)
				s.Addresses = slices.DeleteFunc(s.Addresses, func(a netip.Addr) bool { return p.IsSingleIP() && a == p.Addr() })
				s.Ranges = slices.DeleteFunc(s.Ranges, func(r netip.Prefix) bool { return r == p })
				found = found || len(s.Addresses)+len(s.Ranges) < before
			}
		}
		if !found {
			return fmt.Errorf("%s is not among the node's addresses for pods", bare(p))
		}
	}
	return nil
}

// size counts addresses and prefixes for pods.
func size(nics []store.CloudNIC) (addresses, prefixes int) {
	for _, n := range nics {
		for _, s := range n.Subnets {
			addresses += len(s.Addresses)
			prefixes += len(s.Ranges)
		}
	}
	return addresses, prefixes
}
