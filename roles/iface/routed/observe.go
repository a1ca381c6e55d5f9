package routed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// observed is the node's state that Build needs.
type observed struct {
	// MTU is the smallest MTU of the NICs of the addresses. 0 means unknown.
	MTU int
	// NICs has an entry for each address whose NIC is known.
	NICs []addressNIC
	// Uplink is the first NIC's interface if several NICs are in use, else
	// empty.
	Uplink string
	// StrictRPFilter reports that the uplink drops packets whose replies would
	// leave through another interface (rp_filter 1).
	StrictRPFilter bool
	// RALinks are the interfaces that accept the routes of router
	// advertisements only while the node does not forward (accept_ra 1).
	RALinks []string
}

// addressNIC is the NIC that an address belongs to.
type addressNIC struct {
	Address netip.Addr
	// Link is the NIC's interface. Device is its number: 0 for the first NIC,
	// which needs no table, else the number that selects its table. Gateway is
	// the router on it.
	Link    string
	Device  int
	Gateway netip.Addr
	// Network is the prefixes that are reached without source NAT. It is empty
	// if they are not known.
	Network []netip.Prefix
}

// nicOf is the NIC of an address, or the zero addressNIC if it is not known.
func (o *observed) nicOf(a netip.Addr) addressNIC {
	if i := slices.IndexFunc(o.NICs, func(h addressNIC) bool { return h.Address == a }); i >= 0 {
		return o.NICs[i]
	}
	return addressNIC{}
}

// documentationAddr is an address that exists nowhere (RFC 5737, RFC 3849). The
// route to it is the default route.
func documentationAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
}

// Observe reads the NICs of the addresses, and the sysctls that Build may have
// to change.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	if err := r.conf.masquerade().Observe(ctx, h, in); err != nil {
		return err
	}
	first := in.Observed == nil && in.Prev == nil
	o := &observed{}
	in.Observed = o
	if first {
		if err := r.conf.LinkType.Available(ctx, h); err != nil {
			return err
		}
	}
	if in.IPAM == nil {
		return nil
	}
	ips, err := attach.Addresses(in.IPAM)
	if err != nil {
		return err
	}
	s := &observation{ctx: ctx, net: h.Net, observed: o}
	if len(r.conf.Uplinks) > 0 {
		err = s.findInUplinks(r.conf, ips)
	} else {
		err = s.findInCloud(h, in.Key, ips)
	}
	if err != nil {
		return err
	}
	if err := s.readRPFilter(); err != nil {
		return err
	}
	return s.readRALinks(ips)
}

// observation holds the state of one call of Observe.
type observation struct {
	ctx context.Context
	net *netops.Net
	*observed
	// links are the host's interfaces, read on first use.
	links []netops.LinkInfo
}

// findInUplinks finds the addresses' NICs in the configured uplinks.
func (s *observation) findInUplinks(c *Conf, ips []attach.IPConfig) error {
	var err error
	s.Uplink, err = s.defaultLink(true)
	if s.Uplink == "" && err == nil {
		s.Uplink, err = s.defaultLink(false)
	}
	if err != nil {
		return err
	}
	if s.Uplink == "" {
		return fmt.Errorf("default route: %w: uplinks require an interface with a default route", netops.ErrNotExist)
	}
	for _, ip := range ips {
		a, found := ip.Address.Addr(), addressNIC{Address: ip.Address.Addr(), Link: s.Uplink}
		for i, u := range c.Uplinks {
			if slices.ContainsFunc(u.parsedSubnets(), func(p netip.Prefix) bool { return p.Contains(a) }) {
				found.Link, found.Device, found.Gateway = u.Link, i+1, u.gateway(a.Is4())
				break
			}
		}
		s.NICs = append(s.NICs, found)
		if err := s.lowerMTU(0, found.Link); err != nil {
			return err
		}
	}
	return nil
}

// findInCloud finds the addresses' NICs in what the cloud reported about them.
func (s *observation) findInCloud(h *roles.Host, key store.Key, ips []attach.IPConfig) error {
	locations, err := attachment.CloudLocations(s.ctx, h, key)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		a := ip.Address.Addr()
		i := slices.IndexFunc(locations, func(h attachment.CloudLocation) bool { return h.Address == a && h.Subnet.Prefix.IsValid() })
		if i < 0 {
			link, err := s.defaultLink(a.Is4())
			if err == nil {
				err = s.lowerMTU(0, link)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := s.addCloudAddress(&locations[i]); err != nil {
			return err
		}
	}
	return nil
}

// addCloudAddress adds the NIC of one address of the cloud.
func (s *observation) addCloudAddress(c *attachment.CloudLocation) error {
	found := addressNIC{Address: c.Address, Gateway: c.Subnet.Gateway, Network: sameFamily(c.NIC.Network, c.Address)}
	if len(found.Network) > 0 && !slices.ContainsFunc(found.Network, func(p netip.Prefix) bool { return p.Contains(c.Address) }) {
		found.Network = append(found.Network, c.Subnet.Prefix.Masked())
	}
	first := firstNIC(c.NICs)
	several := slices.ContainsFunc(c.NICs, func(n store.CloudNIC) bool { return n.MAC != first.MAC && n.Usable() })
	var err error
	if c.NIC.MAC == first.MAC {
		found.Link, err = s.firstLink(c, several)
	} else {
		found.Device = c.NIC.Device
		found.Link, err = s.linkOf(&c.NIC)
		err = errors.Join(err, checkDevice(c))
		if !found.Gateway.IsValid() {
			err = errors.Join(err, fmt.Errorf("%w: the cloud reports no gateway for %s, the subnet of %s: set \"uplinks\"", roles.ErrNotAvailable, c.Subnet.Prefix, c.Address))
		}
	}
	if err != nil {
		return err
	}
	if several && s.Uplink == "" {
		s.Uplink, err = s.linkOf(first)
		if err != nil {
			return err
		}
	}
	s.NICs = append(s.NICs, found)
	return s.lowerMTU(c.NIC.MTU, found.Link)
}

// sameFamily are the prefixes of an address's family.
func sameFamily(all []netip.Prefix, a netip.Addr) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() })
}

// firstNIC is the NIC that the cloud calls primary, else the one with the
// lowest number.
func firstNIC(nics []store.CloudNIC) *store.CloudNIC {
	if i := slices.IndexFunc(nics, func(n store.CloudNIC) bool { return n.Primary }); i >= 0 {
		return &nics[i]
	}
	first := slices.MinFunc(nics, func(a, b store.CloudNIC) int { return a.Device - b.Device })
	return &first
}

// checkDevice requires a unique number of a NIC that is not the first, because
// the number selects its routing table.
func checkDevice(c *attachment.CloudLocation) error {
	n := c.NIC.Device
	same := func(o store.CloudNIC) bool { return o.Device == n && o.MAC != c.NIC.MAC }
	if n < 1 || n > maxDevice || slices.ContainsFunc(c.NICs, same) {
		return fmt.Errorf("%w: the cloud's device number %d of NIC %s is out of range or not unique: set \"uplinks\"", roles.ErrNotAvailable, n, c.NIC.MAC)
	}
	return nil
}

// firstLink is the interface of the first NIC. If only this NIC is in use, it
// is the interface of the route to the NIC's gateway. That saves reading all
// interfaces.
func (s *observation) firstLink(c *attachment.CloudLocation, several bool) (string, error) {
	if several {
		return s.linkOf(&c.NIC)
	}
	to := c.Subnet.Gateway
	if !to.IsValid() {
		to = documentationAddr(c.Address.Is4())
	}
	return absentIsEmpty(s.net.RouteLink(s.ctx, nil, to))
}

// defaultLink is the interface of a family's default route, or empty if there
// is none.
func (s *observation) defaultLink(is4 bool) (string, error) {
	return absentIsEmpty(s.net.RouteLink(s.ctx, nil, documentationAddr(is4)))
}

func absentIsEmpty(name string, err error) (string, error) {
	if errors.Is(err, netops.ErrNotExist) {
		return "", nil
	}
	return name, err
}

// anyMAC is the MAC of a NIC that the cloud does not distinguish from others.
const anyMAC = "*"

// linkOf is the interface with a NIC's MAC. If several have it, interfaces with
// a master are ignored: this prefers a bond to its members, and a bridge to its
// port. Of the rest it takes the oldest, which prefers a NIC to its VLANs.
func (s *observation) linkOf(nic *store.CloudNIC) (string, error) {
	if nic.MAC == anyMAC {
		return s.defaultLink(true)
	}
	if s.links == nil {
		var err error
		s.links, err = s.net.Links(s.ctx, nil)
		if err != nil {
			return "", err
		}
	}
	best := netops.LinkInfo{}
	for _, l := range s.links {
		if l.MAC == nic.MAC && l.MasterIndex == 0 && (best.Index == 0 || l.Index < best.Index) {
			best = l
		}
	}
	if best.Index == 0 {
		return "", fmt.Errorf("%w: the cloud's NIC %s %s does not exist on this node yet", roles.ErrTryAgain, nic.MAC, nic.ID)
	}
	return best.Name, nil
}

// lowerMTU lowers the MTU to the one that the cloud reports, or, if that is 0,
// to the interface's.
func (s *observation) lowerMTU(mtu int, link string) error {
	if mtu == 0 && link != "" {
		l, err := s.net.Link(s.ctx, nil, link)
		if err != nil {
			return err
		}
		mtu = l.MTU
	}
	if s.MTU == 0 || mtu > 0 && mtu < s.MTU {
		s.MTU = mtu
	}
	return nil
}

// readRPFilter reads whether the uplink drops packets whose replies would leave
// through another interface. The kernel uses the greater value of "all" and the
// interface's.
func (s *observation) readRPFilter() error {
	if s.Uplink == "" {
		return nil
	}
	effective := 0
	for _, name := range []string{"all", s.Uplink} {
		text, err := s.net.Sysctl(s.ctx, nil, "net/ipv4/conf/"+name+"/rp_filter")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(text); err == nil {
			effective = max(effective, n)
		}
	}
	s.StrictRPFilter = effective == 1
	return nil
}

// readRALinks reads which interfaces will lose the IPv6 routes of router
// advertisements when Wire turns forwarding on.
func (s *observation) readRALinks(ips []attach.IPConfig) error {
	if !slices.ContainsFunc(ips, func(ip attach.IPConfig) bool { return ip.Address.Addr().Is6() }) {
		return nil
	}
	on, err := s.net.Sysctl(s.ctx, nil, "net/ipv6/conf/all/forwarding")
	if err != nil || on != "0" {
		return err
	}
	link, err := s.defaultLink(false)
	if err != nil {
		return err
	}
	names := []string{link, s.Uplink}
	for _, h := range s.NICs {
		names = append(names, h.Link)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == "" {
			continue
		}
		accept, err := absentIsEmpty(s.net.Sysctl(s.ctx, nil, "net/ipv6/conf/"+name+"/accept_ra"))
		if err != nil {
			return err
		}
		if accept == "1" {
			s.RALinks = append(s.RALinks, name)
		}
	}
	return nil
}
