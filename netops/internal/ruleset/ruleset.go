// Package ruleset is what we install in nftables: masquerade, MAC guard, firewall,
// port maps, routed pods and Azure's bridges, each a feature of the one schema.
package ruleset

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// priorityBridgeFirst is NF_BR_PRI_NAT_DST_BRIDGED of linux/netfilter_bridge.h:
	// before any filter of the bridge family.
	priorityBridgeFirst = -300
	// bridgePrerouting is NF_BR_PRE_ROUTING of linux/netfilter_bridge.h.
	bridgePrerouting = 0
)

func inetTable() nft.Table   { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox"} }
func bridgeTable() nft.Table { return nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "cnibox"} }

// Schema is everything that we install in nftables. A new purpose is one more
// function that returns a feature.
func Schema() nft.Schema {
	return nft.Schema{masqueradeFeature(), macGuardFeature(), firewallFeature(), portMapFeature(), routedFeature(), macNATFeature()}
}

// masqueradeFeature hides networks behind the node's addresses. An element is
// one network: the host device its packets come in by, or a pattern of those
// where each container has one, and its subnet. Traffic within the subnet and
// multicast keep their source. A packet the node itself
// sends has no input device and so matches nothing.
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

// macGuardFeature drops frames that a guarded bridge port sends with any other
// source address than those paired with it.
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
