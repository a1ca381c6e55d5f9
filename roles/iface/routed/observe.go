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
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/leasing"
	"github.com/cnibox/cnibox/store"
)

// observed is what Build needs to know of the node.
type observed struct {
	// MTU is the smallest of the NICs that the addresses leave by; 0 is not known.
	MTU int
	// Homes are the NICs of those addresses that are known to be of one.
	Homes []home
	// Uplink is the first NIC's interface where several are in use, else empty.
	Uplink string
	// Strict tells that packets are taken from the uplink only if their answers would
	// leave by it (rp_filter).
	Strict bool
	// Advertised are interfaces that take routes of router advertisements as long as
	// the node does not forward (accept_ra).
	Advertised []string
}

// home is the NIC that an address is of.
type home struct {
	Address netip.Addr
	// Link is its interface. Device is its number among those beside the first, which
	// has 0 and needs no table; Gateway is the router on it.
	Link    string
	Device  int
	Gateway netip.Addr
	// Network is what is reached without translation; none where that is not known.
	Network []netip.Prefix
}

// of is the NIC of an address; the zero home where none is known.
func (o *observed) of(a netip.Addr) home {
	if i := slices.IndexFunc(o.Homes, func(h home) bool { return h.Address == a }); i >= 0 {
		return o.Homes[i]
	}
	return home{}
}

// nobody are addresses that nobody has (RFC 5737, RFC 3849): what leads there is the
// default route.
func nobody(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
}

// Observe reads which NICs the addresses are of, and what of these Build has to change.
func (r *role) Observe(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	r.conf.masquerade().Warn(h, in)
	o := &observed{}
	in.Observed = o
	if in.IPAM == nil {
		return nil
	}
	ips, err := attach.Addresses(in.IPAM)
	if err != nil {
		return err
	}
	s := &survey{ctx: ctx, net: h.Net, observed: o}
	if len(r.conf.Uplinks) > 0 {
		err = s.uplinks(r.conf, ips)
	} else {
		err = s.cloud(h, in.Key, ips)
	}
	if err != nil {
		return err
	}
	if err := s.strictness(); err != nil {
		return err
	}
	return s.advertised(ips)
}

// survey is one call of Observe.
type survey struct {
	ctx context.Context
	net *netops.Net
	*observed
	// links are the host's, read when they are needed.
	links []netops.LinkInfo
}

// uplinks finds the addresses' NICs among those of the configuration.
func (s *survey) uplinks(c *Conf, ips []attach.Family) error {
	var err error
	if s.Uplink, err = s.defaultLink(true); s.Uplink == "" && err == nil {
		s.Uplink, err = s.defaultLink(false)
	}
	if err != nil {
		return err
	}
	if s.Uplink == "" {
		return fmt.Errorf("default route: %w: uplinks stand beside the device that it leads to", netops.ErrNotExist)
	}
	for _, ip := range ips {
		a, found := ip.Address.Addr(), home{Address: ip.Address.Addr(), Link: s.Uplink}
		for i, u := range c.Uplinks {
			if slices.ContainsFunc(u.subnets(), func(p netip.Prefix) bool { return p.Contains(a) }) {
				found.Link, found.Device, found.Gateway = u.Link, i+1, u.gateway(a.Is4())
				break
			}
		}
		s.Homes = append(s.Homes, found)
		if err := s.narrow(0, found.Link); err != nil {
			return err
		}
	}
	return nil
}

// cloud finds the addresses' NICs by what the cloud said of them.
func (s *survey) cloud(h *roles.Host, key store.Key, ips []attach.Family) error {
	homes, err := leasing.CloudHome(s.ctx, h, key)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		a := ip.Address.Addr()
		i := slices.IndexFunc(homes, func(h leasing.Home) bool { return h.Address == a && h.Subnet.Prefix.IsValid() })
		if i < 0 {
			link, err := s.defaultLink(a.Is4())
			if err == nil {
				err = s.narrow(0, link)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := s.cloudAddress(&homes[i]); err != nil {
			return err
		}
	}
	return nil
}

// cloudAddress is one address of the cloud's.
func (s *survey) cloudAddress(c *leasing.Home) error {
	found := home{Address: c.Address, Gateway: c.Subnet.Gateway, Network: sameFamily(c.NIC.Network, c.Address)}
	if len(found.Network) > 0 && !slices.ContainsFunc(found.Network, func(p netip.Prefix) bool { return p.Contains(c.Address) }) {
		found.Network = append(found.Network, c.Subnet.Prefix.Masked())
	}
	first := firstNIC(c.NICs)
	several := slices.ContainsFunc(c.NICs, func(n store.CloudNIC) bool { return n.MAC != first.MAC && hasPods(&n) })
	var err error
	if c.NIC.MAC == first.MAC {
		found.Link, err = s.firstLink(c, several)
	} else {
		found.Device = c.NIC.Device
		found.Link, err = s.linkOf(&c.NIC)
		err = errors.Join(err, judgeNumber(c))
		if !found.Gateway.IsValid() {
			err = errors.Join(err, fmt.Errorf("%w: the cloud names no gateway of %s, which %s is of: set \"uplinks\"", roles.ErrNotAvailable, c.Subnet.Prefix, c.Address))
		}
	}
	if err != nil {
		return err
	}
	if several && s.Uplink == "" {
		if s.Uplink, err = s.linkOf(first); err != nil {
			return err
		}
	}
	s.Homes = append(s.Homes, found)
	return s.narrow(c.NIC.MTU, found.Link)
}

// sameFamily are the prefixes of an address's family.
func sameFamily(all []netip.Prefix, a netip.Addr) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() })
}

// firstNIC is the one that the cloud calls primary, else the one of the lowest number.
func firstNIC(nics []store.CloudNIC) *store.CloudNIC {
	if i := slices.IndexFunc(nics, func(n store.CloudNIC) bool { return n.Primary }); i >= 0 {
		return &nics[i]
	}
	first := slices.MinFunc(nics, func(a, b store.CloudNIC) int { return a.Device - b.Device })
	return &first
}

// hasPods tells whether a NIC has addresses for pods.
func hasPods(n *store.CloudNIC) bool {
	return slices.ContainsFunc(n.Subnets, func(s store.CloudSubnet) bool { return len(s.Addresses)+len(s.Ranges) > 0 })
}

// judgeNumber wants a NIC beside the first to have a number of its own: its table has it.
func judgeNumber(c *leasing.Home) error {
	n := c.NIC.Device
	same := func(o store.CloudNIC) bool { return o.Device == n && o.MAC != c.NIC.MAC }
	if n < 1 || n > maxDevice || slices.ContainsFunc(c.NICs, same) {
		return fmt.Errorf("%w: the cloud's number %d of NIC %s is none of its own: set \"uplinks\"", roles.ErrNotAvailable, n, c.NIC.MAC)
	}
	return nil
}

// firstLink is the interface of the first NIC. Where it is the only one in use, that
// by which its gateway is reached need not be looked for among all.
func (s *survey) firstLink(c *leasing.Home, several bool) (string, error) {
	if several {
		return s.linkOf(&c.NIC)
	}
	to := c.Subnet.Gateway
	if !to.IsValid() {
		to = nobody(c.Address.Is4())
	}
	return absentIsEmpty(s.net.RouteLink(s.ctx, nil, to))
}

// defaultLink is the interface of a family's default route; empty for none.
func (s *survey) defaultLink(is4 bool) (string, error) {
	return absentIsEmpty(s.net.RouteLink(s.ctx, nil, nobody(is4)))
}

func absentIsEmpty(name string, err error) (string, error) {
	if errors.Is(err, netops.ErrNotExist) {
		return "", nil
	}
	return name, err
}

// anyMAC is that of a NIC which the cloud does not tell from others.
const anyMAC = "*"

// linkOf is the interface with a NIC's MAC. Of several it is the one that is in no
// other: a bond rather than its members, a bridge that has taken the NIC over; and then
// the oldest: a NIC rather than VLANs on it.
func (s *survey) linkOf(nic *store.CloudNIC) (string, error) {
	if nic.MAC == anyMAC {
		return s.defaultLink(true)
	}
	if s.links == nil {
		var err error
		if s.links, err = s.net.Links(s.ctx, nil); err != nil {
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
		return "", fmt.Errorf("%w: the cloud's NIC %s %s is not on this node (yet)", roles.ErrTryAgain, nic.MAC, nic.ID)
	}
	return best.Name, nil
}

// narrow takes an MTU into account: that which the cloud tells, else the interface's.
func (s *survey) narrow(mtu int, link string) error {
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

// strictness reads whether the uplink takes packets only if it is the way back too.
// The kernel goes by the greater of two settings.
func (s *survey) strictness() error {
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
	s.Strict = effective == 1
	return nil
}

// advertised reads which interfaces will lose their IPv6 routes when the node begins
// to forward.
func (s *survey) advertised(ips []attach.Family) error {
	if !slices.ContainsFunc(ips, func(ip attach.Family) bool { return ip.Address.Addr().Is6() }) {
		return nil
	}
	on, err := s.net.Sysctl(s.ctx, nil, "net/ipv6/conf/all/forwarding")
	if err != nil || on != "0" {
		return err
	}
	way, err := s.defaultLink(false)
	if err != nil {
		return err
	}
	names := []string{way, s.Uplink}
	for _, h := range s.Homes {
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
			s.Advertised = append(s.Advertised, name)
		}
	}
	return nil
}
