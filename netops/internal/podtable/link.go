package podtable

import (
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Link is the interface of a pod on the host, whether policies select the pod or not. Its elements say which addresses are its own.
type Link struct {
	// Label is that of the pod's attachment.
	Label string
	// Name is the interface's, and Bridge that of its bridge, or "".
	Name, Bridge string
	// MAC is that of the pod's interface, and BridgeMAC that of Bridge. "" is unknown.
	MAC, BridgeMAC string
	// Addresses are those of the pod's interface. If AnyAddress is true, it can have others, too: its DHCP lease can change.
	Addresses  []netip.Addr
	AnyAddress bool
	// Allowed are networks whose addresses the pod may have too, in their order and none within another. A Router may send router advertisements
	// and answers of DHCP.
	Allowed []netip.Prefix
	Router  bool
	// Gateways are the addresses of the node on Bridge, and GatewayLinks its interfaces there beside the bridge.
	Gateways     []netip.Addr
	GatewayLinks []GatewayLink
	// Networks are those of Bridge, and PodNetworks those of all pods. A pod that can have other addresses than its own has none of another network.
	Networks, PodNetworks []netip.Prefix
}

// GatewayLink is an interface of the node on a VLAN of a bridge, or the end of a pair whose other end is the bridge's port Port.
type GatewayLink struct{ Name, MAC, Port string }

// Equal reports whether l and o have the same values.
func (l *Link) Equal(o *Link) bool {
	return l.Label == o.Label && l.Name == o.Name && l.Bridge == o.Bridge && l.MAC == o.MAC && l.BridgeMAC == o.BridgeMAC &&
		l.AnyAddress == o.AnyAddress && l.Router == o.Router && slices.Equal(l.Allowed, o.Allowed) && slices.Equal(l.Addresses, o.Addresses) &&
		slices.Equal(l.Gateways, o.Gateways) && slices.Equal(l.GatewayLinks, o.GatewayLinks) && slices.Equal(l.Networks, o.Networks) && slices.Equal(l.PodNetworks, o.PodNetworks)
}

// mayHaveOthers reports whether the pod can have other addresses of a family than its own.
func (l *Link) mayHaveOthers(v6 bool) bool {
	return l.AnyAddress || !slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })
}

// Widest returns networks in their order without those within others: the kernel refuses these.
func Widest(all []netip.Prefix) (out []netip.Prefix) {
	for _, p := range sorting.Sorted(all, netip.Prefix.Compare) {
		if p = p.Masked(); !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p)
		}
	}
	return out
}

// The sets of links. Those of addresses get the family's suffix. Those of Table have all addresses of pods, each as a pair with itself, and the
// links that are not ports of a bridge with their addresses.
const (
	addressSet   = "address"
	routedLinks  = PodSets + "links"
	routedSet    = "link"
	bridgeSet    = PodSets + "bridges"
	portLinks    = PodSets + "ports"
	portSet      = "port"
	bridgedSet   = "bridged"
	selectedSet  = "selected"
	anyAddresses = "any"
	allowedSet   = "allowed"
	refusedSet   = "refused"
	routerPorts  = PodSets + "routers"
	portMACs     = PodSets + "port_mac"
	allMACs      = PodSets + "mac"
	// The ports behind which the node has an interface, with its MAC, and their bridges.
	gatewayPorts   = PodSets + "gateway"
	gatewayBridges = PodSets + "gateway_bridges"
)

// linkSets returns the sets of links in Table.
func linkSets() (sets []*nft.Set) {
	for _, v6 := range []bool{false, true} {
		sets = append(sets,
			&nft.Set{Table: Table(), Name: podSet(addressSet, v6), Key: []nft.Field{addressField(v6)}},
			&nft.Set{Table: Table(), Name: podSet(self, v6), Key: []nft.Field{addressField(v6), addressField(v6)}},
			&nft.Set{Table: Table(), Name: podSet(routedSet, v6), Key: []nft.Field{nft.IfName, addressField(v6)}})
	}
	return append(sets,
		&nft.Set{Table: Table(), Name: routedLinks, Key: []nft.Field{nft.IfName}},
		&nft.Set{Table: Table(), Name: bridgeSet, Key: []nft.Field{nft.IfName}},
		&nft.Set{Table: Table(), Name: gatewayBridges, Key: []nft.Field{nft.IfName}})
}

// portSets returns the sets of links in BridgeTable: the ports with their own addresses, the addresses of all pods and bridges, those of pods that
// policies select for ingress, and the ports that may have other addresses.
func portSets() (sets []*nft.Set) {
	for _, v6 := range []bool{false, true} {
		sets = append(sets,
			&nft.Set{Table: BridgeTable(), Name: podSet(portSet, v6), Key: []nft.Field{nft.IfName, addressField(v6)}},
			&nft.Set{Table: BridgeTable(), Name: podSet(bridgedSet, v6), Key: []nft.Field{addressField(v6)}},
			&nft.Set{Table: BridgeTable(), Name: podSet(selectedSet, v6), Key: []nft.Field{addressField(v6)}},
			&nft.Set{Table: BridgeTable(), Name: podSet(anyAddresses, v6), Key: []nft.Field{nft.IfName}},
			&nft.Set{Table: BridgeTable(), Name: podSet(allowedSet, v6), Key: []nft.Field{nft.IfName, prefixField(v6)}},
			&nft.Set{Table: BridgeTable(), Name: podSet(refusedSet, v6), Key: []nft.Field{nft.IfName, prefixField(v6)}})
	}
	return append(sets,
		&nft.Set{Table: BridgeTable(), Name: portLinks, Key: []nft.Field{nft.IfName}},
		&nft.Set{Table: BridgeTable(), Name: routerPorts, Key: []nft.Field{nft.IfName}},
		&nft.Set{Table: BridgeTable(), Name: gatewayPorts, Key: []nft.Field{nft.IfName, nft.EtherAddr}},
		&nft.Set{Table: BridgeTable(), Name: portMACs, Key: []nft.Field{nft.IfName, nft.EtherAddr}},
		&nft.Set{Table: BridgeTable(), Name: allMACs, Key: []nft.Field{nft.EtherAddr}})
}

func prefixField(v6 bool) nft.Field { return either(v6, nft.IP4Prefix, nft.IP6Prefix) }

// LinkElements returns the elements of a link. Those of its bridge are the same for each link, and have the bridge's label.
func LinkElements(l *Link) (all []*nft.Element) {
	if l.Name == "" {
		return nil
	}
	label := l.Label
	add := func(set string, key ...string) { all = append(all, &nft.Element{Set: set, Key: key, Label: label}) }
	own := routedSet
	if l.Bridge == "" {
		add(routedLinks, l.Name)
	} else {
		own = portSet
		add(portLinks, l.Name)
	}
	addresses := func(name, own string, some ...netip.Addr) {
		for _, a := range some {
			add(podSet(own, a.Is6()), name, a.String())
			add(podSet(bridgedSet, a.Is6()), a.String())
		}
	}
	for _, a := range l.Addresses {
		add(podSet(addressSet, a.Is6()), a.String())
		add(podSet(self, a.Is6()), a.String(), a.String())
	}
	addresses(l.Name, own, l.Addresses...)
	if l.Bridge == "" {
		return all
	}
	for _, v6 := range []bool{false, true} {
		networks := func(set string, some []netip.Prefix) {
			for _, p := range some {
				if p.Addr().Is6() == v6 {
					add(podSet(set, v6), l.Name, p.String())
				}
			}
		}
		if !l.mayHaveOthers(v6) {
			networks(allowedSet, l.Allowed)
			continue
		}
		add(podSet(anyAddresses, v6), l.Name)
		networks(allowedSet, Widest(slices.Concat(l.Allowed, l.Networks)))
		networks(refusedSet, l.PodNetworks)
	}
	if l.Router {
		add(routerPorts, l.Name)
	}
	macs := func(name, mac string) {
		if mac != "" {
			add(portMACs, name, mac)
			add(allMACs, mac)
			addresses(name, portSet, linkLocal(mac)...)
		}
	}
	macs(l.Name, l.MAC)
	label = "bridge " + l.Bridge
	add(bridgeSet, l.Bridge)
	macs(l.Bridge, l.BridgeMAC)
	for _, a := range l.Gateways {
		add(podSet(bridgedSet, a.Is6()), a.String())
	}
	for _, g := range l.GatewayLinks {
		add(allMACs, g.MAC)
		add(bridgeSet, g.Name)
		if g.Port != "" {
			add(gatewayBridges, l.Bridge)
			add(gatewayPorts, g.Port, g.MAC)
		}
	}
	return all
}

// linkLocalNetwork has the addresses that routers do not forward (RFC 4291, section 2.5.6).
func linkLocalNetwork() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10)
}

// linkLocal returns the address that an interface makes of its MAC (RFC 4291, appendix A).
func linkLocal(mac string) []netip.Addr {
	m, err := net.ParseMAC(mac)
	if err != nil || len(m) != 6 {
		return nil
	}
	return []netip.Addr{netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})}
}

// bridgeFeature returns BridgeTable's sets.
func bridgeFeature() nft.Feature {
	f := nft.Feature{Table: BridgeTable(), Chains: func() []nft.Chain { return nil }}
	for _, name := range []string{egressPorts, ingressPorts} {
		f.Sets = append(f.Sets, &nft.Set{Table: f.Table, Name: name, Key: []nft.Field{nft.IfName}})
	}
	f.Sets = append(f.Sets, portSets()...)
	return f
}

// BridgeTable returns the table that filters frames between the ports of a bridge. Table receives only frames of IPv4 and IPv6
// without a VLAN tag, and knows a pod only by its addresses. So BridgeTable drops the other frames to and from a pod that a
// policy selects: those with a tag, of another protocol, and those that are not for the pod's addresses, or from them.
func BridgeTable() nft.Table { return nft.Table{Family: unix.NFPROTO_BRIDGE, Name: Table().Name} }
