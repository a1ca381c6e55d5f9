package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store/cluster"
)

// selection selects the interface to the other nodes.
type selection struct {
	// ifaces are names or addresses.
	ifaces   []string
	regexes  []*regexp.Regexp
	canReach netip.Addr
	// public4 and public6 are the addresses that other nodes send to.
	public4, public6 netip.Addr
}

// override replaces the public addresses of the flags by those of the registry.
func (s *selection) override(w cluster.Overrides) {
	if w.NodeIP.IsValid() {
		s.public4 = w.NodeIP
	}
	if w.NodeIPv6.IsValid() {
		s.public6 = w.NodeIPv6
	}
}

// underlay is the interface to the other nodes.
type underlay struct {
	link string
	mtu  int
	// local4 and local6 are the node's own addresses on the interface. public4 and public6 are the
	// addresses that other nodes send to. They differ if a router translates addresses.
	local4, local6, public4, public6 netip.Addr
}

// family returns the addresses of one family.
func (u *underlay) family(v6 bool) (local, public netip.Addr) {
	if v6 {
		return u.local6, u.public6
	}
	return u.local4, u.public4
}

// errNoInterface means that no interface matches the flags.
var errNoInterface = errors.New("no interface to the other nodes")

// choose selects the underlay among the node's interfaces for the required families. The order is:
// -iface in the given order, -iface-regex in the given order, the route to -iface-can-reach, the
// owner of the public address, the default route. routeLink returns the name of the interface of
// the route to an address.
func (s *selection) choose(links []netops.HostLink, need4, need6 bool, routeLink func(netip.Addr) (string, error)) (underlay, error) {
	l, err := s.link(links, need4, need6, routeLink)
	if err != nil {
		return underlay{}, err
	}
	if l.MTU <= 0 {
		return underlay{}, fmt.Errorf("interface %q has no MTU", l.Name)
	}
	u := underlay{link: l.Name, mtu: l.MTU}
	var errs []error
	if need4 {
		u.local4, u.public4, err = address(l, s.public4, s.namedAddress(l, true), netip.Addr.Is4, "IPv4")
		errs = append(errs, err)
	}
	if need6 {
		u.local6, u.public6, err = address(l, s.public6, s.namedAddress(l, false), netip.Addr.Is6, "IPv6")
		errs = append(errs, err)
	}
	return u, errors.Join(errs...)
}

// errContainsNodes means that the nodes' addresses are in the pod network: nodes would give them to pods, and would
// not reach each other.
var errContainsNodes = errors.New("choose one without addresses of nodes")

// chooseUnderlay selects the underlay for a configuration. See choose for routeLink.
func (k *knowledge) chooseUnderlay(c *cluster.Config, routeLink func(netip.Addr) (string, error)) (underlay, error) {
	selection := k.set.underlay
	selection.override(k.overrides)
	u, err := selection.choose(k.links, c.EnableIPv4, c.EnableIPv6, routeLink)
	if err != nil {
		return u, err
	}
	if c.Backend.Type == backendHostGW && (u.local4 != u.public4 || u.local6 != u.public6) {
		return u, errors.New("backend host-gw: the public address does not belong to the interface: nodes use each other as gateways")
	}
	for i := range k.links {
		for _, h := range k.links[i].Addresses {
			for network, local := range map[netip.Prefix]netip.Addr{c.Network: u.local4, c.IPv6Network: u.local6} {
				if h.Prefix.Addr() == local && network.Contains(local) {
					return u, fmt.Errorf("pod network %s contains %s of interface %q to the other nodes: %w", network, h.Prefix.Masked(), u.link, errContainsNodes)
				}
			}
		}
	}
	return u, nil
}

// namedAddress returns the address of the link that -iface names, if there is one.
func (s *selection) namedAddress(l *netops.HostLink, is4 bool) netip.Addr {
	for _, want := range s.ifaces {
		if a, err := netip.ParseAddr(want); err == nil && a.Is4() == is4 && has(l, a) {
			return a
		}
	}
	return netip.Addr{}
}

// link selects the interface.
func (s *selection) link(links []netops.HostLink, need4, need6 bool, routeLink func(netip.Addr) (string, error)) (*netops.HostLink, error) {
	first := func(fits func(*netops.HostLink) bool) *netops.HostLink {
		for i := range links {
			if fits(&links[i]) {
				return &links[i]
			}
		}
		return nil
	}
	for _, want := range s.ifaces {
		a, err := netip.ParseAddr(want)
		l := first(func(l *netops.HostLink) bool { return l.Name == want || err == nil && has(l, a) })
		if l != nil {
			return l, nil
		}
	}
	for _, re := range s.regexes {
		byAddress := func(l *netops.HostLink) bool {
			return slices.ContainsFunc(l.Addresses, func(a netops.HostAddr) bool {
				return usable(a) && needed(a, need4, need6) && re.MatchString(a.Prefix.Addr().String())
			})
		}
		if l := cmp.Or(first(byAddress), first(func(l *netops.HostLink) bool { return re.MatchString(l.Name) })); l != nil {
			return l, nil
		}
	}
	if len(s.ifaces)+len(s.regexes) > 0 {
		return nil, fmt.Errorf("%w: no interface matches %s; %s", errNoInterface, s.describeFlags(), describeLinks(links))
	}
	if s.canReach.IsValid() {
		name, err := routeLink(s.canReach)
		if err != nil {
			return nil, fmt.Errorf("%w: -iface-can-reach: %w; %s", errNoInterface, err, describeLinks(links))
		}
		if l := first(func(l *netops.HostLink) bool { return l.Name == name }); l != nil {
			return l, nil
		}
	}
	for _, public := range []netip.Addr{s.public4, s.public6} {
		if l := first(func(l *netops.HostLink) bool { return public.IsValid() && has(l, public) }); l != nil {
			return l, nil
		}
	}
	if s.public4.IsValid() || s.public6.IsValid() {
		return nil, fmt.Errorf("%w: no interface has the public address; name one with -iface if a router translates the address; %s", errNoInterface, describeLinks(links))
	}
	return defaultLink(links, need4, need6)
}

// defaultLink returns the interface of the default route with the lowest metric. Interfaces with
// addresses of all required families come first.
func defaultLink(links []netops.HostLink, need4, need6 bool) (*netops.HostLink, error) {
	var found []*netops.HostLink
	for i := range links {
		if l := &links[i]; need4 && l.Default4 || !need4 && l.Default6 {
			found = append(found, l)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: there is no default route; name the interface with -iface; %s", errNoInterface, describeLinks(links))
	}
	lacks6 := func(l *netops.HostLink) int {
		if need6 && !slices.ContainsFunc(l.Addresses, func(a netops.HostAddr) bool { return a.Prefix.Addr().Is6() && usable(a) }) {
			return 1
		}
		return 0
	}
	metric := func(l *netops.HostLink) int {
		if need4 {
			return l.Metric4
		}
		return l.Metric6
	}
	return slices.MinFunc(found, func(a, b *netops.HostLink) int {
		return cmp.Or(cmp.Compare(lacks6(a), lacks6(b)), cmp.Compare(metric(a), metric(b)), cmp.Compare(a.Index, b.Index))
	}), nil
}

// describeFlags returns -iface and -iface-regex for an error message.
func (s *selection) describeFlags() string {
	var all []string
	for _, i := range s.ifaces {
		all = append(all, fmt.Sprintf("-iface %.60q", i))
	}
	for _, re := range s.regexes {
		all = append(all, fmt.Sprintf("-iface-regex %.60q", re.String()))
	}
	return strings.Join(all, ", ")
}

// describeLinks lists the interfaces for an error message.
func describeLinks(links []netops.HostLink) string {
	var all []string
	for _, l := range links {
		if l.Loopback || len(all) == maxListedLinks {
			continue
		}
		what := []string{"down"}
		if l.Up {
			what = nil
		}
		for _, a := range l.Addresses {
			if usable(a) {
				what = append(what, a.Prefix.String())
			}
		}
		all = append(all, strings.TrimSpace(l.Name+" "+strings.Join(what, " ")))
	}
	if len(all) == 0 {
		return "there are no interfaces"
	}
	return "there are: " + strings.Join(all, ", ")
}

// maxListedLinks limits the interfaces in an error message, because a node has many interfaces of
// pods.
const maxListedLinks = 20

func has(l *netops.HostLink, want netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(a netops.HostAddr) bool { return a.Prefix.Addr() == want })
}

// usable reports whether peers can send to an address permanently.
func usable(a netops.HostAddr) bool {
	addr := a.Prefix.Addr()
	return !a.Deprecated && !a.Tentative && !addr.IsLoopback() && !addr.IsMulticast() && (addr.Is4() || !addr.IsLinkLocalUnicast())
}

func needed(a netops.HostAddr, need4, need6 bool) bool {
	return a.Prefix.Addr().Is4() && need4 || a.Prefix.Addr().Is6() && need6
}

// address returns a link's own address of one family, and the address that peers send to. The
// latter is public if that is given. The own address is chosen in this order: the public address,
// the address that -iface names, global before link scope, permanent before leased, and privacy
// addresses (RFC 8981) last.
func address(l *netops.HostLink, public, named netip.Addr, is func(netip.Addr) bool, family string) (local, published netip.Addr, err error) {
	var found []netops.HostAddr
	for _, a := range l.Addresses {
		if is(a.Prefix.Addr()) && usable(a) {
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		return local, published, fmt.Errorf("interface %q has no %s address", l.Name, family)
	}
	rank := func(a netops.HostAddr) int {
		n := 0
		for i, worse := range []bool{a.Temporary, !a.Permanent, a.Prefix.Addr().IsLinkLocalUnicast(), !a.Global, a.Prefix.Addr() != named, a.Prefix.Addr() != public} {
			if worse {
				n += 1 << i
			}
		}
		return n
	}
	best := slices.MinFunc(found, func(a, b netops.HostAddr) int { return cmp.Compare(rank(a), rank(b)) })
	local = best.Prefix.Addr()
	if !public.IsValid() {
		public = local
	}
	return local, public, nil
}
