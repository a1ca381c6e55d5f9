package view

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/netops/tunnel"
)

// Host is the host's namespace, which also has bridges, tunnels and packet filters.
type Host struct {
	Namespace
	// rules are those of other programs, which verdicts need.
	rules *look.Filter
}

// NewHost returns the view of the host of n.
func NewHost(ctx context.Context, n *netops.Net) *Host {
	return newHost(&source{ctx: ctx, net: n, facts: map[string]any{}})
}

func newHost(s *source) *Host {
	s.opened = map[string]*netops.Namespace{}
	return &Host{Namespace: Namespace{source: s, Name: HostName}}
}

// LinkAt returns the link with a number, or nil.
func (h *Host) LinkAt(index int) (*netops.LinkInfo, error) {
	all, err := h.Links()
	i := slices.IndexFunc(all, func(l netops.LinkInfo) bool { return l.Index == index })
	if i < 0 {
		return nil, err
	}
	return &all[i], nil
}

// Counters returns the counters of the links by their numbers.
func (h *Host) Counters() (map[int]netops.Counters, error) {
	return ask(&h.Namespace, "counters", func() (map[int]netops.Counters, error) { return h.net.Counters(h.ctx) })
}

// Uplink returns the link of the default route, or "".
func (h *Host) Uplink() (string, error) {
	return ask(&h.Namespace, "uplink", func() (string, error) {
		link, err := h.net.DefaultRouteLink(h.ctx, nil)
		if errors.Is(err, netops.ErrNotExist) {
			return "", nil
		}
		return link, err
	})
}

// BridgeEntries returns the entries of bridges that they have not learnt.
func (h *Host) BridgeEntries() ([]netops.BridgeEntry, error) {
	return ask(&h.Namespace, "bridge entries", func() ([]netops.BridgeEntry, error) { return h.net.BridgeEntries(h.ctx) })
}

// ForwardingEntry returns where a bridge or a VXLAN device sends frames to a MAC.
func (h *Host) ForwardingEntry(link, mac string) (netops.Forwarded, error) {
	return ask(&h.Namespace, "forwarding entry: "+mac+" dev "+link, func() (netops.Forwarded, error) { return h.net.ForwardingEntry(h.ctx, link, mac) })
}

// VLANs returns the VLANs of a port of a bridge, or of the bridge itself.
func (h *Host) VLANs(link string) ([]netops.VLAN, error) {
	return ask(&h.Namespace, "VLANs: "+link, func() ([]netops.VLAN, error) { return h.net.VLANs(h.ctx, link) })
}

// TunnelEntries returns the entries of a VXLAN device that were not learnt.
func (h *Host) TunnelEntries(link string) (netops.TunnelEntries, error) {
	return ask(&h.Namespace, "tunnel entries: "+link, func() (netops.TunnelEntries, error) { return h.net.TunnelEntries(h.ctx, link) })
}

// Tunnels returns the tunnels to other nodes.
func (h *Host) Tunnels() ([]tunnel.Device, error) {
	return ask(&h.Namespace, "tunnels", func() ([]tunnel.Device, error) { return tunnel.List(h.ctx, h.net) })
}

// TunnelFaults returns what keeps the datagrams of a tunnel from nodes, as tunnel.Faults does.
func (h *Host) TunnelFaults(t *tunnel.Device, isManaged bool) ([]tunnel.Fault, error) {
	if len(t.Peers) == 0 {
		return nil, nil
	}
	return ask(&h.Namespace, fmt.Sprintf("tunnel faults: %s to %v, %t", t.Name, t.Peers, isManaged), func() ([]tunnel.Fault, error) {
		filter, err := h.filter()
		if err != nil {
			return nil, err
		}
		return tunnel.Faults(h.ctx, h.net, filter, t, isManaged)
	})
}

// filter returns the rules of other programs.
func (h *Host) filter() (_ *look.Filter, err error) {
	if h.rules == nil {
		h.rules, err = look.Read(h.ctx, h.net)
	}
	return h.rules, err
}

// Verdicts returns what the rules of other programs do with each of the packets.
func (h *Host) Verdicts(packets ...look.Packet) (all []look.Verdict, err error) {
	for _, p := range packets {
		one, err := ask(&h.Namespace, about("verdict", p), func() (v look.Verdict, err error) {
			filter, err := h.filter()
			if err != nil {
				return v, err
			}
			found, err := look.Verdicts(h.ctx, filter, p)
			if err == nil {
				v = found[0]
			}
			return v, err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// RoutingMark returns the mark that the rules give a packet before it is routed, or 0 if it is not known.
func (h *Host) RoutingMark(p look.Packet) (uint32, error) {
	return ask(&h.Namespace, about("mark", p), func() (uint32, error) {
		filter, err := h.filter()
		if err != nil {
			return 0, err
		}
		return look.RoutingMark(h.ctx, filter, p)
	})
}

// TranslatedBefore returns a rule that translates packets before the rules of a published port do, or nil.
func (h *Host) TranslatedBefore(in string, to netip.AddrPort, protocol string) (*look.Drop, error) {
	return ask(&h.Namespace, fmt.Sprintf("translation: %s/%s from %s", to, protocol, in), func() (*look.Drop, error) {
		filter, err := h.filter()
		if err != nil {
			return nil, err
		}
		return look.TranslatedBefore(h.ctx, filter, in, to, protocol)
	})
}

// Held is whether the host has an address. If not, Link is the one to which the route to it leads, or "".
type Held struct {
	Has  bool
	Link string
}

// HasAddress reports whether the host has an address, as netops.Net.HasAddress does.
func (h *Host) HasAddress(a netip.Addr) (Held, error) {
	return ask(&h.Namespace, "address: "+a.String(), func() (is Held, err error) {
		is.Has, is.Link, err = h.net.HasAddress(h.ctx, a)
		return is, err
	})
}

// EgressAddress returns the egressAddress with which a packet that arrives on a link leaves the host, or the zero Addr.
func (h *Host) EgressAddress(in string, from, to netip.Addr) (netip.Addr, error) {
	return ask(&h.Namespace, fmt.Sprintf("egress: %s on %s to %s", from, in, to), func() (netip.Addr, error) {
		return h.net.EgressAddress(h.ctx, in, from, to)
	})
}

// MTUOf returns the MTU of the packets that leave the namespace at a path by a link to an address. It is 0 if they do not leave by it, if
// the namespace is gone, and if the route tells servers another segment size of TCP connections.
func (h *Host) MTUOf(path, link string, to netip.Addr) (int, error) {
	return ask(&h.Namespace, fmt.Sprintf("MTU: %s in %s to %s", link, path, to), func() (int, error) {
		ns, err := h.net.OpenNamespace(path)
		if errors.Is(err, netops.ErrNoNetns) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		defer ns.Close() //nolint:errcheck // it was opened for reading
		way, err := h.net.Way(h.ctx, ns, netops.Packet{To: to})
		if errors.Is(err, netops.ErrNotExist) || err == nil && (way.Link != link || way.AdvMSS != 0) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		l, err := h.net.Link(h.ctx, ns, link)
		if way.MTU != 0 {
			l.MTU = min(l.MTU, way.MTU)
		}
		return l.MTU, err
	})
}

// Service is the address of a service of Kubernetes.
type Service struct {
	// IsKnown is false for another address.
	IsKnown   bool
	Endpoints []netip.AddrPort
}

// Service returns the endpoints to which kube-proxy translates an address.
func (h *Host) Service(to netip.AddrPort) (Service, error) {
	return ask(&h.Namespace, "service: "+to.String(), func() (s Service, err error) {
		s.Endpoints, s.IsKnown, err = look.Service(h.ctx, h.net, to)
		return s, err
	})
}

// Datagrams returns the tracked connections of UDP that packets without a zone use. There are none if the kernel does not track
// connections, or cannot list them.
func (h *Host) Datagrams() ([]netops.Connection, error) {
	return ask(&h.Namespace, "tracked UDP", func() ([]netops.Connection, error) {
		all, err := h.net.Connections(h.ctx, unix.IPPROTO_UDP)
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
			return nil, nil
		}
		return slices.DeleteFunc(all, func(c netops.Connection) bool { return c.InZone }), err
	})
}

// Reachable returns the addresses of links that other hosts can reach.
func Reachable(links []netops.LinkInfo) (all []netip.Addr) {
	for _, l := range links {
		for _, p := range l.Addresses {
			if a := p.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				all = append(all, a)
			}
		}
	}
	return all
}
