package metadata

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// nic is an interface as a cloud describes it, not yet judged.
type nic struct {
	mac, id string
	// device is unnumbered where the cloud does not count.
	device  int
	primary bool
	mtu     int
	subnets []subnet
	network []string
	dns     []string
}

// unnumbered: the cloud does not number its interfaces.
const unnumbered = -1

// subnet is what a nic has of one. All but prefix may be empty.
type subnet struct {
	prefix, gateway        string
	own, addresses, ranges []string
	// firstIsOwn: the cloud does not say which address is the node's own. It is one
	// that the node has, or, where it has none of them, the first.
	firstIsOwn bool
}

// finish makes the reply of what a provider decoded. none is why there may be no
// addresses for pods in a good reply.
func finish(provider string, nics []nic, own []netip.Addr, none string) (*Reply, error) {
	r := &Reply{Provider: provider}
	r.NICs, r.Dropped = normalise(nics, own)
	if count(r.NICs) > 0 {
		return r, nil
	}
	why := []string{none}
	if len(nics) == 0 {
		why = []string{"the reply names no interface"}
	}
	if len(r.Dropped) > 0 {
		why = append(why, "dropped: "+r.Dropped[0])
	}
	return r, fmt.Errorf("%s: %w: %s", provider, ErrNoAddresses, strings.Join(why, "; "))
}

// count is how many addresses and ranges for pods there are.
func count(nics []store.CloudNIC) int {
	n := 0
	for _, c := range nics {
		for _, s := range c.Subnets {
			n += len(s.Addresses) + len(s.Ranges)
		}
	}
	return n
}

// homes are the subnets that a cloud names apart from the addresses in them.
type homes struct {
	subnets  []subnet
	prefixes []netip.Prefix
}

// homesOf are the subnets, of a gateway if that is not empty.
func homesOf(prefixes []string, gateway string) *homes {
	h := &homes{}
	for _, text := range prefixes[:min(len(prefixes), maxSubnets)] {
		p, _ := netip.ParsePrefix(strings.TrimSpace(text))
		h.prefixes = append(h.prefixes, p)
		h.subnets = append(h.subnets, subnet{prefix: text, gateway: gateway})
	}
	return h
}

// of is where an address or prefix belongs. What is of no subnet goes to the first one, or to one
// without a prefix: to be dropped there by name.
func (h *homes) of(text string) *subnet {
	p, _ := asPrefix(strings.TrimSpace(text))
	for i, home := range h.prefixes {
		if home.Contains(p.Addr()) {
			return &h.subnets[i]
		}
	}
	if len(h.subnets) == 0 {
		h.subnets = append(h.subnets, subnet{})
	}
	return &h.subnets[0]
}

func (h *homes) own(list ...string) *homes {
	for _, a := range list {
		to := h.of(a)
		to.own = append(to.own, a)
	}
	return h
}

// addresses are for pods; those that are the node's own too go to nobody.
func (h *homes) addresses(list []string) *homes {
	for _, a := range list {
		to := h.of(a)
		to.addresses = append(to.addresses, a)
	}
	return h
}

// unmarked are addresses of which the cloud does not say which is the node's own.
func (h *homes) unmarked(list []string) *homes {
	for i := range h.subnets {
		h.subnets[i].firstIsOwn = true
	}
	return h.addresses(list)
}

func (h *homes) ranges(list []string) *homes {
	for _, r := range list {
		to := h.of(r)
		to.ranges = append(to.ranges, r)
	}
	return h
}

// asPrefix is a prefix that may be written as one address.
func asPrefix(s string) (p netip.Prefix, single bool) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, false
		}
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, _ = netip.ParsePrefix(s)
	return p, p.IsSingleIP()
}

// withMask is the prefix of an address and a mask, which is "255.255.255.0" or a
// number of bits. What cannot be understood comes back as text, to be dropped by name.
func withMask(addr, mask string) string {
	a, err := netip.ParseAddr(addr)
	bits, ok := maskBits(mask)
	if err != nil || !ok || bits > a.BitLen() {
		return addr + "/" + mask
	}
	return netip.PrefixFrom(a, bits).Masked().String()
}

func maskBits(mask string) (int, bool) {
	m, err := netip.ParseAddr(mask)
	if err != nil {
		var bits int
		_, err := fmt.Sscanf(mask, "%d", &bits)
		return bits, err == nil && bits >= 0 && fmt.Sprint(bits) == mask
	}
	bits, ended := 0, false
	for _, b := range m.AsSlice() {
		for i := 7; i >= 0; i-- {
			set := b>>i&1 == 1
			if set && ended {
				return 0, false
			}
			ended = ended || !set
			if set {
				bits++
			}
		}
	}
	return bits, true
}
