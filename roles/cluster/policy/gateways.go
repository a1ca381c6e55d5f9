package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/store"
)

// gateway is what the node has on a bridge: its addresses and their networks, and its interfaces beside the bridge.
type gateway struct {
	addresses []netip.Addr
	networks  []netip.Prefix
	links     []podfilter.GatewayLink
}

// gatewaysOf returns what the node has on bridges, by their names: on the bridge, on a VLAN of it, and on a pair whose other end is a port.
func gatewaysOf(all []netops.LinkInfo) map[string]*gateway {
	byIndex, gateways := map[int]*netops.LinkInfo{}, map[string]*gateway{}
	for i := range all {
		byIndex[all[i].Index] = &all[i]
		if all[i].Kind == "bridge" {
			gateways[all[i].Name] = new(gateway)
		}
	}
	for i := range all {
		l, peer := &all[i], byIndex[all[i].PeerIndex]
		g, port := gateways[l.Name], ""
		switch {
		case g != nil || l.PeerElsewhere || peer == nil:
		case l.IsPairEnd():
			g = gateways[peer.Master]
			if l.Master == "" { // else it is no end of the packet's way
				port = peer.Name
			}
		case l.Kind == "vlan":
			g = gateways[peer.Name]
		}
		if g != nil {
			g.add(l, port)
		}
	}
	return gateways
}

// add adds an interface. With a port its peer is that port of the bridge. One without an address is not the node's end of anything: a hypervisor,
// for instance, reads its frames.
func (g *gateway) add(l *netops.LinkInfo, port string) {
	if l.Kind != "bridge" {
		if !slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return !a.Addr().IsLinkLocalUnicast() }) {
			port = ""
		}
		g.links = append(g.links, podfilter.GatewayLink{Name: l.Name, MAC: l.MAC, Port: port})
	}
	for _, a := range l.Addresses {
		g.addresses = append(g.addresses, a.Addr())
		if !a.IsSingleIP() && !a.Addr().IsLinkLocalUnicast() {
			g.networks = append(g.networks, a.Masked())
		}
	}
	sorting.Stable(g.addresses, netip.Addr.Compare)
	sorting.Stable(g.links, func(a, b podfilter.GatewayLink) int { return strings.Compare(a.Name, b.Name) })
	g.networks = netops.WidestNetworks(g.networks)
}

// podNetworks returns the networks of the pods on bridges of this node, and of the overlay.
func (l *attachments) podNetworks() (all []netip.Prefix) {
	for _, bridge := range l.bridges() {
		if g := l.named.gateways[bridge]; g != nil {
			all = append(all, g.networks...)
		}
	}
	if o, err := store.ReadOverlay(l.host.Store.OverlayPath()); err == nil { // else the node has none
		for _, f := range []*store.OverlayFamily{o.IPv4, o.IPv6} {
			if f != nil {
				all = append(all, f.Networks...)
			}
		}
	}
	return netops.WidestNetworks(all)
}

// addGateway adds what the node has on the link's bridge, and the networks of pods.
func (l *attachments) addGateway(link *podfilter.Link) {
	if g := l.named.gateways[link.Bridge]; g != nil {
		link.Gateways, link.GatewayLinks, link.Networks = g.addresses, g.links, g.networks
	}
	if link.Bridge != "" {
		link.PodNetworks = l.networks
	}
}
