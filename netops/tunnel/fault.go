package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
	"github.com/cnibox/cnibox/netops/internal/verdict"
	"github.com/cnibox/cnibox/netops/look"
)

// Fault is something on this host that keeps the datagrams of a tunnel from other nodes, or theirs from
// it.
type Fault struct {
	Tunnel string
	Kind   FaultKind
	// What names the rule, or the route and its MTU. Fix is a command that mends it, or "".
	What, Fix string
	// Peers are the nodes to which it applies.
	Peers []netip.Addr
}

// FaultKind is a kind of Fault.
type FaultKind string

// The kinds of faults. A link's MTU is that of the interface by which a tunnel sends, a route's MTU is smaller.
const (
	SentDropped     FaultKind = "what the tunnel sends is dropped"
	ReceivedDropped FaultKind = "what the tunnel receives is dropped"
	PeerUnreachable FaultKind = "there is no route"
	LinkMTU         FaultKind = "the MTU of the interface is too small"
	RouteMTU        FaultKind = "the MTU of the route is too small"
)

// String returns the fault without its fix.
func (f *Fault) String() string {
	return fmt.Sprintf("%s, %s: %s: %s", f.Tunnel, f.Nodes(), f.Kind, f.What)
}

// Nodes lists the first peers, and counts the others.
func (f *Fault) Nodes() string {
	const shown = 3
	var all []string
	for _, p := range f.Peers[:min(len(f.Peers), shown)] {
		all = append(all, p.String())
	}
	text := "node " + strings.Join(all, ", ")
	if others := len(f.Peers) - shown; others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}

// Faults looks for faults of a tunnel: rules of packet filters, policy rules, and MTUs of routes, which the
// kernel also learns from routers. It sends nothing. With managed, an agent sets the MTU of the tunnel to that of
// the interface below it. filter has the rules.
func Faults(ctx context.Context, n *netops.Net, filter *look.Filter, t *Device, managed bool) (_ []Fault, err error) {
	var nets []netip.Prefix
	if len(t.Peers) > 0 && t.Parent != "" {
		if nets, err = n.Addresses(ctx, nil, t.Parent); err != nil {
			return nil, err
		}
	}
	s := &search{parentNets: nets, net: n, device: t, managed: managed, filter: filter, common: map[verdict.Packet]verdict.Verdict{}}
	for _, peer := range t.Peers {
		if err := s.peer(ctx, peer); err != nil {
			return nil, err
		}
	}
	return s.found, nil
}

// search collects the faults of a tunnel.
type search struct {
	net     *netops.Net
	device  *Device
	managed bool
	filter  *look.Filter
	// parentNets are the networks of the tunnel's parent.
	parentNets []netip.Prefix
	// common has the verdicts about packets of any peer.
	common map[verdict.Packet]verdict.Verdict
	found  []Fault
}

func (s *search) add(peer netip.Addr, kind FaultKind, what, fix string) {
	i := slices.IndexFunc(s.found, func(f Fault) bool { return f.Kind == kind && f.What == what && f.Fix == fix })
	if i < 0 {
		i = len(s.found)
		s.found = append(s.found, Fault{Tunnel: s.device.Name, Kind: kind, What: what, Fix: fix})
	}
	s.found[i].Peers = append(s.found[i].Peers, peer)
}

// peer looks for the faults between the tunnel and one peer.
func (s *search) peer(ctx context.Context, peer netip.AddrPort) error {
	t := s.device
	p := netops.Packet{To: peer.Addr(), Out: t.Parent}
	if t.Local.Is6() == peer.Addr().Is6() {
		p.From = t.Local
	}
	r, c, err := s.net.KernelRoute(ctx, nil, p)
	onLink := func(a netip.Prefix) bool { return a.Contains(peer.Addr()) }
	if err == nil && p.Out != "" && !r.Via.IsValid() && !slices.ContainsFunc(s.parentNets, onLink) {
		p.Out = "" // with a link the kernel sends to a peer without a route as if it were on the link
	}
	if err != nil || p.Out != t.Parent {
		_, err = s.net.Way(ctx, nil, p)
	}
	refused := &netops.RouteRefusal{}
	switch {
	case err == nil:
	case errors.As(err, &refused):
		s.add(peer.Addr(), PeerUnreachable, refused.By, refused.Fix)
		return nil
	case errors.Is(err, netops.ErrNotExist):
		s.add(peer.Addr(), PeerUnreachable, "no route matches", "")
		return nil
	default:
		return err
	}
	if r.Kind != unix.RTN_UNICAST {
		return nil
	}
	l, err := c.LinkByIndex(ctx, r.Link)
	if err != nil {
		return err
	}
	s.mtu(peer.Addr(), &r, l)
	if !p.From.IsValid() {
		p.From = r.Src
	}
	if !p.From.IsValid() {
		return nil // the host has no address
	}
	// The source port of VXLAN depends on the flow, so its packets in both directions are of different connections.
	state := verdict.New
	own, remote := netip.AddrPortFrom(p.From, 0), netip.AddrPortFrom(peer.Addr(), 0)
	if t.Kind != rtnl.KindVXLAN {
		state = verdict.Unknown
		own, remote = netip.AddrPortFrom(p.From, t.Port), peer
	}
	sent := verdict.Packet{Out: l.Name, Protocol: unix.IPPROTO_UDP, Source: own, Destination: peer, State: state}
	received := verdict.Packet{Direction: verdict.Received, In: l.Name, Protocol: unix.IPPROTO_UDP, Source: remote, Destination: netip.AddrPortFrom(p.From, t.Port), State: state}
	return errors.Join(s.drops(ctx, peer.Addr(), sent), s.drops(ctx, peer.Addr(), received))
}

// drops adds what drops a packet. A node has thousands of peers, and most rules do not depend on them.
func (s *search) drops(ctx context.Context, peer netip.Addr, p verdict.Packet) (err error) {
	kind, anyPeer := SentDropped, p
	if p.Direction == verdict.Received {
		kind, anyPeer.Source = ReceivedDropped, netip.AddrPortFrom(netip.Addr{}, p.Source.Port())
	} else {
		anyPeer.Destination = netip.AddrPortFrom(netip.Addr{}, p.Destination.Port())
	}
	v, known := s.common[anyPeer]
	if !known {
		if v, err = s.filter.Verdict(ctx, anyPeer); err != nil {
			return err
		}
		s.common[anyPeer] = v
	}
	if len(v.MayDrop) > 0 {
		if v, err = s.filter.Verdict(ctx, p); err != nil {
			return err
		}
	}
	for _, d := range v.Drops {
		port := p.Destination.Port()
		s.add(peer, kind, d.Rule, d.Exception(fmt.Sprintf("udp dport %d", port), fmt.Sprintf("-p udp --dport %d", port)))
	}
	return nil
}

// mtu compares the tunnel's MTU with what the link and the route to a peer leave for it.
func (s *search) mtu(peer netip.Addr, r *rtnl.Route, l *rtnl.Link) {
	t := s.device
	overhead := 20 + 8 + 8 + 14 // IPv4 (RFC 791), UDP, VXLAN and Ethernet (RFC 7348)
	if t.Kind == rtnl.KindWireGuard {
		overhead = 20 + 8 + 32 // and WireGuard's header and authentication tag
	}
	if peer.Is6() {
		overhead += 20
	}
	kind, mtu, what := LinkMTU, l.MTU, l.Name
	if r.MTU > 0 && r.MTU < l.MTU {
		kind, mtu, what = RouteMTU, r.MTU, "the route over "+l.Name
		if r.Expires {
			what = "a router of the path over " + l.Name // ICMP reported it
		}
	}
	fits := mtu - overhead
	if t.MTU <= fits {
		return
	}
	fix := fmt.Sprintf("ip link set %s mtu %d", t.Name, fits)
	if s.managed {
		fix = fmt.Sprintf("ip link set %s mtu %d", l.Name, mtu)
	}
	s.add(peer, kind, fmt.Sprintf("%s has %d, and %s needs %d", what, mtu, cmp.Or(t.Name, t.Kind), t.MTU+overhead), fix)
}
