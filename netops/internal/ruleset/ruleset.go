// Package ruleset defines cnibox's nftables rules: masquerade, MAC guard,
// firewall, port maps, routed pods and Azure's bridges. Each is a feature of one
// schema.
package ruleset

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// priorityBridgeFirst is NF_BR_PRI_NAT_DST_BRIDGED of
	// linux/netfilter_bridge.h: before all filters of the bridge family.
	priorityBridgeFirst = -300
	// bridgePrerouting is NF_BR_PRE_ROUTING of linux/netfilter_bridge.h.
	bridgePrerouting = 0
)

func inetTable() nft.Table   { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox"} }
func bridgeTable() nft.Table { return nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "cnibox"} }

// Schema returns all features that cnibox makes in nftables. A new purpose is one
// more function that returns a feature.
func Schema() nft.Schema {
	return nft.Schema{masqueradeFeature(), macGuardFeature(), firewallFeature(), portMapFeature(), portRangeFeature(), routedFeature(), macNATFeature()}
}

// masqueradeFeature masquerades networks behind the node's addresses. An element
// is one network: its subnet, and the host device at which its packets arrive, or
// a name pattern if each container has its own device. Packets to the same subnet
// and to multicast addresses keep their source. Packets of the node itself have
// no input device, so they match no element.
func masqueradeFeature() nft.Feature {
	table := inetTable()
	masq4 := &nft.Set{Table: table, Name: "masq4", Key: []nft.Field{nft.IfPattern, nft.IP4Prefix}}
	masq6 := &nft.Set{Table: table, Name: "masq6", Key: []nft.Field{nft.IfPattern, nft.IP6Prefix}}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{masq4, masq6},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT,
				Rules: []nft.Rule{
					nft.NewRule(nft.DestinationIn("224.0.0.0/4"), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Destination4(), nft.In(masq4), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Source4(), nft.In(masq4), nft.Masquerade()),
					nft.NewRule(nft.DestinationIn("ff00::/8"), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Destination6(), nft.In(masq6), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Source6(), nft.In(masq6), nft.Masquerade()),
				},
			}}
		},
	}
}

// macGuardFeature drops frames that arrive at a guarded bridge port with a source
// MAC that is not paired with the port.
func macGuardFeature() nft.Feature {
	table := bridgeTable()
	ports := &nft.Set{Table: table, Name: "macguard_ports", Key: []nft.Field{nft.IfName}}
	pairs := &nft.Set{Table: table, Name: "macguard_pairs", Key: []nft.Field{nft.IfName, nft.EtherAddr}}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{ports, pairs},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "prerouting", Kind: "filter", Hook: bridgePrerouting, Priority: priorityBridgeFirst,
				Rules: []nft.Rule{
					nft.NewRule(nft.InputLink(), nft.SourceMAC(), nft.In(pairs), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.In(ports), nft.Drop()),
				},
			}}
		},
	}
}
