package check

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/view"
)

// PodRoute compares the node's route to a pod's address with the pod's device on the host, to which answers must lead. It returns
// what the kernel has instead and a command that mends it, or "". A lost route is a difference of its own. A bridge without an
// address of the pod's network routes nothing, unless isRouted.
func PodRoute(v *view.Host, hostLink string, a netip.Addr, isRouted bool) (want, have, fix string, err error) {
	links, err := v.Links()
	if err != nil {
		return "", "", "", err
	}
	find := func(name string) *netops.LinkInfo {
		if i := slices.IndexFunc(links, func(l netops.LinkInfo) bool { return l.Name == name }); i >= 0 {
			return &links[i]
		}
		return nil
	}
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	l := find(hostLink)
	if l == nil || !l.IsPairEnd() {
		return "", "", "", nil
	}
	isGlobal := func(p netip.Prefix) bool { return p.Addr().IsGlobalUnicast() }
	switch {
	case l.Master == "" && !isRouted && !slices.ContainsFunc(l.Addresses, isGlobal):
		return "", "", "", nil // a bridge's port without its bridge, or routed without an address on the host
	case l.Master != "":
		if l = find(l.Master); l == nil || !isRouted && !slices.ContainsFunc(l.Addresses, contains) {
			return "", "", "", nil
		}
	}
	fix = fmt.Sprintf("ip route prepend %s dev %s", a, l.Name)
	if a.Is6() {
		fix = fmt.Sprintf("ip -6 route add %s dev %s metric 1", a, l.Name)
	}
	way, err := v.Way(netops.Packet{To: a})
	refusal := &netops.RouteRefusal{}
	switch {
	case errors.As(err, &refusal):
		return l.Name, refusal.By, cmp.Or(refusal.Fix, fix), nil
	case errors.Is(err, netops.ErrNotExist):
		return "", "", "", nil
	case err != nil:
		return "", "", "", err
	case way.Local:
		for _, other := range links {
			for _, p := range other.Addresses {
				if p.Addr() == a {
					return l.Name, "the node itself has it on " + other.Name, fmt.Sprintf("ip addr del %s dev %s", p, other.Name), nil
				}
			}
		}
		return l.Name, "the node itself has it", "ip route show table local", nil
	case way.Link != l.Name:
		if other := find(way.Link); other != nil && OtherEnd(links, other) != nil && OtherEnd(links, other).Master == l.Name {
			return "", "", "", nil // the gateway of a VLAN of the bridge
		}
		if other := find(way.Link); other != nil && !way.Via.IsValid() {
			if i := slices.IndexFunc(other.Addresses, contains); i >= 0 {
				fix = fmt.Sprintf("ip addr del %s dev %s", other.Addresses[i], other.Name)
			}
		}
		routes, err := v.Routes()
		bits := map[bool]int{true: -1, false: -1} // of the best route to the pod's device, and to others
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_MAIN && r.Dst.Contains(a) {
				bits[r.Link == l.Name] = max(bits[r.Link == l.Name], r.Dst.Bits())
			}
		}
		if err == nil && bits[true] > bits[false] { // a policy rule leads to another table
			fix = fmt.Sprintf("ip %s rule add to %s lookup main priority 1", map[bool]string{true: "-6", false: "-4"}[a.Is6()], a)
		}
		return l.Name, "dev " + way.Link, fix, nil
	}
	return "", "", "", nil
}

// OtherEnd returns the other end of a pair if links, which are the host's, have both, or nil.
func OtherEnd(links []netops.LinkInfo, l *netops.LinkInfo) *netops.LinkInfo {
	i := slices.IndexFunc(links, func(o netops.LinkInfo) bool { return o.Index == l.PeerIndex })
	if !l.IsPairEnd() || l.PeerElsewhere || i < 0 {
		return nil
	}
	return &links[i]
}

// The modes of ReversePath.
const (
	SourceUnchecked = "0"
	SourceStrict    = "1"
)

// ReversePath returns how the kernel checks the sources of IPv4 packets that arrive on a link (rp_filter in the kernel's ip-sysctl):
// with SourceStrict it drops those to whose source the route does not lead back by that link. fix makes it accept any source that has a
// route.
func ReversePath(v *view.Namespace, link string) (mode, fix string, err error) {
	key := "net/ipv4/conf/" + link + "/rp_filter"
	all, failed := v.Sysctl("net/ipv4/conf/all/rp_filter")
	own, err := v.Sysctl(key)
	mode = max(all, own)
	if mode == SourceStrict {
		fix = v.Enter + "sysctl -w " + key + "=2"
	}
	return mode, fix, errors.Join(failed, err)
}
