package metadata

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/store"
)

// nic is an interface in a cloud's reply, before validation.
type nic struct {
	mac, id string
	// device is unnumbered if the cloud does not number its interfaces.
	device  int
	primary bool
	mtu     int
	subnets []subnet
	network []string
	dns     []string
}

// unnumbered means that the cloud does not number its interfaces.
const unnumbered = -1

// subnet is a nic's part of a subnet. All fields except prefix may be empty.
type subnet struct {
	prefix, gateway        string
	own, addresses, ranges []string
	// firstIsOwn means that the cloud does not mark the node's own address. It is the one that the
	// node has, or else the first.
	firstIsOwn bool
}

// finish returns the reply of a provider. none explains why a valid reply may have no addresses for
// pods.
func finish(provider string, nics []nic, own []netip.Addr, none string) (*Reply, error) {
	r := &Reply{Provider: provider}
	r.NICs, r.Dropped = normalise(nics, own)
	if count(r.NICs) > 0 {
		return r, nil
	}
	why := []string{none}
	if len(nics) == 0 {
		why = []string{"the reply has no interface"}
	}
	if len(r.Dropped) > 0 {
		why = append(why, "dropped: "+r.Dropped[0])
	}
	return r, fmt.Errorf("%s: %w: %s", provider, ErrNoAddresses, strings.Join(why, "; "))
}

// count returns the number of addresses and ranges for pods.
func count(nics []store.CloudNIC) int {
	n := 0
	for _, c := range nics {
		for _, s := range c.Subnets {
			n += len(s.Addresses) + len(s.Ranges)
		}
	}
	return n
}

// subnetList has the subnets of a cloud that lists subnets and addresses separately.
type subnetList struct {
	subnets  []subnet
	prefixes []netip.Prefix
}

// newSubnetList returns a list with a subnet for each prefix. The gateway may be empty.
func newSubnetList(prefixes []string, gateway string) *subnetList {
	h := &subnetList{}
	for _, text := range prefixes[:min(len(prefixes), maxSubnets)] {
		p, _ := netip.ParsePrefix(strings.TrimSpace(text))
		h.prefixes = append(h.prefixes, p)
		h.subnets = append(h.subnets, subnet{prefix: text, gateway: gateway})
	}
	return h
}

// of returns the subnet of an address or prefix. If no subnet contains it, the result is the first
// one, or one without a prefix, which drops and reports it.
func (h *subnetList) of(text string) *subnet {
	p, _ := asPrefix(strings.TrimSpace(text))
	for i, prefix := range h.prefixes {
		if prefix.Contains(p.Addr()) {
			return &h.subnets[i]
		}
	}
	if len(h.subnets) == 0 {
		h.subnets = append(h.subnets, subnet{})
	}
	return &h.subnets[0]
}

func (h *subnetList) own(list ...string) *subnetList {
	for _, a := range list {
		to := h.of(a)
		to.own = append(to.own, a)
	}
	return h
}

// addresses adds addresses for pods. normalise removes the node's own.
func (h *subnetList) addresses(list []string) *subnetList {
	for _, a := range list {
		to := h.of(a)
		to.addresses = append(to.addresses, a)
	}
	return h
}

// unmarked adds addresses of which one is the node's own and not marked.
func (h *subnetList) unmarked(list []string) *subnetList {
	for i := range h.subnets {
		h.subnets[i].firstIsOwn = true
	}
	return h.addresses(list)
}

func (h *subnetList) ranges(list []string) *subnetList {
	for _, r := range list {
		to := h.of(r)
		to.ranges = append(to.ranges, r)
	}
	return h
}

// asPrefix parses a prefix or a single address.
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

// withMask returns the prefix of an address and a mask, which is "255.255.255.0" or a number of
// bits. Invalid values are returned as text, so that normalise drops and reports them.
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
