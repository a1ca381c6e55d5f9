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

// selection says which interface leads to the other nodes.
type selection struct {
	// ifaces are names or addresses.
	ifaces   []string
	regexes  []*regexp.Regexp
	canReach netip.Addr
	// public4 and public6 are what the node is reached at.
	public4, public6 netip.Addr
}

// wish puts what is asked for in the registry before what flags say.
func (s *selection) wish(w cluster.Wishes) {
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
	// local4 and local6 are the node's own addresses there, public4 and public6
	// what the others send to: others where an address is translated on the way.
	local4, local6, public4, public6 netip.Addr
}

// errNoInterface means that there is no interface as the flags want it.
var errNoInterface = errors.New("no interface to the other nodes")

// choose finds the underlay among the node's interfaces, for the families that
// are needed: those of -iface in order, then those of -iface-regex, the one that
// leads to -iface-can-reach, the one that has the public address, the one of the
// default route. routeLink is asked for the name of the interface to an address.
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
		u.local4, u.public4, err = address(l, s.public4, s.named(l, true), netip.Addr.Is4, "IPv4")
		errs = append(errs, err)
	}
	if need6 {
		u.local6, u.public6, err = address(l, s.public6, s.named(l, false), netip.Addr.Is6, "IPv6")
		errs = append(errs, err)
	}
	return u, errors.Join(errs...)
}

// named is the address by which -iface asks for a link, if it does.
func (s *selection) named(l *netops.HostLink, is4 bool) netip.Addr {
	for _, want := range s.ifaces {
		if a, err := netip.ParseAddr(want); err == nil && a.Is4() == is4 && has(l, a) {
			return a
		}
	}
	return netip.Addr{}
}

// link finds the interface.
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
		return nil, fmt.Errorf("%w: none fits %s; %s", errNoInterface, s.asked(), seen(links))
	}
	if s.canReach.IsValid() {
		name, err := routeLink(s.canReach)
		if err != nil {
			return nil, fmt.Errorf("%w: -iface-can-reach: %w; %s", errNoInterface, err, seen(links))
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
		return nil, fmt.Errorf("%w: none has the public address; name one by -iface if the address is translated on the way; %s", errNoInterface, seen(links))
	}
	return defaultLink(links, need4, need6)
}

// defaultLink is the interface of the default route with the lowest metric, one
// that has addresses of all families before the others.
func defaultLink(links []netops.HostLink, need4, need6 bool) (*netops.HostLink, error) {
	var found []*netops.HostLink
	for i := range links {
		if l := &links[i]; need4 && l.Default4 || !need4 && l.Default6 {
			found = append(found, l)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: there is no default route; name one by -iface; %s", errNoInterface, seen(links))
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

// asked repeats what -iface and -iface-regex ask for.
func (s *selection) asked() string {
	var all []string
	for _, i := range s.ifaces {
		all = append(all, fmt.Sprintf("-iface %.60q", i))
	}
	for _, re := range s.regexes {
		all = append(all, fmt.Sprintf("-iface-regex %.60q", re.String()))
	}
	return strings.Join(all, ", ")
}

// seen tells which interfaces there are.
func seen(links []netops.HostLink) string {
	var all []string
	for _, l := range links {
		if l.Loopback || len(all) == maxSeen {
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
		return "there is none at all"
	}
	return "there are: " + strings.Join(all, ", ")
}

// maxSeen is how many interfaces an error names: a node has many of its pods'.
const maxSeen = 20

func has(l *netops.HostLink, want netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(a netops.HostAddr) bool { return a.Prefix.Addr() == want })
}

// usable tells whether peers may send to an address for long.
func usable(a netops.HostAddr) bool {
	addr := a.Prefix.Addr()
	return !a.Deprecated && !a.Tentative && !addr.IsLoopback() && !addr.IsMulticast() && (addr.Is4() || !addr.IsLinkLocalUnicast())
}

func needed(a netops.HostAddr, need4, need6 bool) bool {
	return a.Prefix.Addr().Is4() && need4 || a.Prefix.Addr().Is6() && need6
}

// address is a link's own address of one family, and what peers send to: the
// public address where one is given. That is the own one too if the link has it.
// Global ones come before those of the link, permanent before leased ones, and
// privacy addresses (RFC 8981) last.
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
