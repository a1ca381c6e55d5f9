package check

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/see/view"
)

// Kinds of the links that carry packets to other nodes.
const (
	KindVXLAN     = "vxlan"
	KindWireGuard = "wireguard"
)

// IsTunnel reports whether a link carries packets to other nodes.
func IsTunnel(l *netops.LinkInfo) bool { return l.Kind == KindVXLAN || l.Kind == KindWireGuard }

// Elsewhere returns an address of another network that no rule names (RFC 2544, RFC 5180).
func Elsewhere(is6 bool) netip.Addr {
	if is6 {
		return netip.MustParseAddr("2001:2::1")
	}
	return netip.MustParseAddr("198.18.0.1")
}

// uplink returns an interface that is not of pods with an address of a family that other networks can reach, or nil. An interface
// that is down has none of IPv6.
func uplink(v *view.Host, is6 bool) (*netops.LinkInfo, error) {
	links, err := v.Links()
	for i := range links {
		l := &links[i]
		reachable := func(p netip.Prefix) bool {
			return p.Addr().Is6() == is6 && p.Addr().IsGlobalUnicast() && (!is6 || !p.Addr().IsPrivate()) && !p.IsSingleIP()
		}
		if !attachment.Labelled(*l) && !IsTunnel(l) && slices.ContainsFunc(l.Addresses, reachable) {
			return l, nil
		}
	}
	return nil, err
}

// NoEgress is what keeps packets of pods from other networks.
type NoEgress struct {
	Fault
	// IsAbsent means that the node has no route, as it can be on purpose.
	IsAbsent bool
}

// DefaultRoute judges the host's routes to other networks. A host without an address there needs none.
func DefaultRoute(v *view.Host, is6 bool) (*NoEgress, error) {
	up, err := uplink(v, is6)
	if err != nil || up == nil {
		return nil, err
	}
	if _, err = v.Way(netops.Packet{To: Elsewhere(is6)}); !errors.Is(err, netops.ErrNotExist) || errors.As(err, new(*netops.RouteRefusal)) {
		return nil, err
	}
	if !up.Up {
		return &NoEgress{*Up(&v.Namespace, up, false), true}, nil
	}
	f := Fault{Object: up.Name, Text: "no default route for IPv4"}
	if is6 {
		f.Text = "no default route for IPv6"
	}
	f.Fix, err = Configure(v, up.Name)
	return &NoEgress{f, true}, err
}

// Configure returns what gives an interface its addresses and routes again.
func Configure(v *view.Host, link string) (string, error) {
	command, err := v.Manager(link)
	if command == "" {
		command = "configure " + link + " again, as at the start of the node"
	}
	return command, err
}

// Refused judges a refusal of packets from a network.
func Refused(r *netops.RouteRefusal, from netip.Prefix) *Fault {
	return &Fault{r.By, "host has no route for packets from " + from.Masked().String() + ": " + r.By + " refuses them", r.Accept("from " + from.Masked().String())}
}

// Egress judges the route of packets from a device of pods to other networks, and the answers. from is a pod's address in its network.
func Egress(v *view.Host, device string, from netip.Prefix) (*NoEgress, error) {
	is6 := from.Addr().Is6()
	if up, err := uplink(v, is6); err != nil || up == nil {
		return nil, err
	}
	way, err := wayOut(v, device, from.Addr())
	refusal := &netops.RouteRefusal{}
	switch {
	case errors.As(err, &refusal):
		return &NoEgress{Fault: *Refused(refusal, from)}, nil
	case errors.Is(err, netops.ErrNotExist):
		return DefaultRoute(v, is6) // with a default route, the node does not forward
	case err != nil || way.Link == "":
		return nil, err
	}
	out, err := v.Link(way.Link)
	if err != nil {
		return nil, err
	}
	f := Up(&v.Namespace, out, attachment.Labelled(*out))
	if f == nil {
		f, err = answersForwarded(v, way.Link, is6)
	}
	if f == nil && err == nil {
		f, err = silentRouter(v, way)
	}
	if f == nil || err != nil {
		return nil, err
	}
	return &NoEgress{Fault: *f}, nil
}

// wayOut returns the way of a pod's packet to other networks.
func wayOut(v *view.Host, device string, from netip.Addr) (netops.Way, error) {
	p := netops.Packet{To: Elsewhere(from.Is6()), From: from, In: device}
	mark, err := v.RoutingMark(look.Packet{In: device, From: p.From, To: p.To, Protocol: "tcp", Port: 443})
	if err != nil {
		return netops.Way{}, err
	}
	p.Mark = mark
	return v.Way(p)
}

// SmallerUplink returns the interface by which packets from a device of pods leave to other networks, if its MTU is less than mtu, or nil. from
// is a pod's address. It returns nil for tunnels, and if a rule sets the segment size of TCP connections, which is the usual remedy.
func SmallerUplink(v *view.Host, device string, from netip.Addr, mtu int) (*netops.LinkInfo, error) {
	if mtu == 0 {
		return nil, nil
	}
	way, err := wayOut(v, device, from)
	if errors.Is(err, netops.ErrNotExist) || err == nil && (way.Link == "" || way.Local) || errors.As(err, new(*netops.RouteRefusal)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := v.Link(way.Link)
	if err != nil || out.MTU >= mtu || IsTunnel(out) || attachment.Labelled(*out) {
		return nil, err
	}
	verdicts, err := v.Verdicts(look.Packet{In: device, Out: out.Name, From: from, To: Elsewhere(from.Is6()), Protocol: "tcp", Port: 443})
	if err != nil || len(verdicts[0].Clamped) > 0 {
		return nil, err
	}
	return out, nil
}

// answersForwarded judges the setting of the interface by which answers come. That of the node is judged for the pods' devices.
func answersForwarded(v *view.Host, link string, is6 bool) (*Fault, error) {
	f, err := Forwarding(v, link, is6)
	if f != nil && f.Object == forwardingKeys(link, is6)[0] {
		return nil, err
	}
	return f, err
}

// silentRouter judges the next router of a way, and the others that its default route uses for other packets. Of IPv6 the kernel uses
// those that answer.
func silentRouter(v *view.Host, way netops.Way) (*Fault, error) {
	routes, err := v.Routes()
	if err != nil {
		return nil, err
	}
	hops := []netops.Way{way}
	isDefault := func(o netops.Route) bool { return o.Dst.Bits() == 0 && o.Dst.Addr().Is4() }
	i := slices.IndexFunc(routes, func(o netops.Route) bool { return isDefault(o) && o.Link == way.Link && o.Via == way.Via })
	for _, o := range routes {
		if i >= 0 && isDefault(o) && o.Table == routes[i].Table && o.Priority == routes[i].Priority {
			hops = append(hops, netops.Way{Link: o.Link, Via: o.Via})
		}
	}
	for _, hop := range hops {
		if !hop.Via.IsValid() {
			continue
		}
		f, err := Silent(&v.Namespace, hop.Link, hop.Via)
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

// EgressAddress judges an address with which packets of pods leave the host.
func EgressAddress(v *view.Host, a netip.Addr) (*Fault, error) {
	is, err := v.HasAddress(a)
	if err != nil || is.Has {
		return nil, err
	}
	f := &Fault{a.String(), "the packets of pods leave with " + a.String() + ", and no interface of this node has it, so no answer arrives", "give an interface of the node the address"}
	if is.Link != "" {
		f.Fix = "ip addr add " + netip.PrefixFrom(a, a.BitLen()).String() + " dev " + is.Link
	}
	return f, nil
}

// PublishedAt judges the address at which a port is published. A local route also gives the host one.
func PublishedAt(v *view.Host, a netip.Addr) (*Fault, error) {
	if !a.IsValid() || a.IsUnspecified() {
		return nil, nil
	}
	is, err := v.HasAddress(a)
	if err != nil || is.Has {
		return nil, err
	}
	return &Fault{a.String(), "no interface of this node has the address " + a.String(), "give the node the address, or publish the port on another one"}, nil
}
