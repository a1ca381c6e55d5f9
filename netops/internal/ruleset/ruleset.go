// Package ruleset defines cnibox's nftables rules: masquerade, MAC guard,
// firewall, port maps, routed pods and Azure's bridges. Each is a feature of one
// schema.
package ruleset

import (
	"slices"

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

// TableName is the name of cnibox's tables, of the inet and of the bridge family.
const TableName = "cnibox"

func inetTable() nft.Table   { return nft.Table{Family: unix.NFPROTO_INET, Name: TableName} }
func bridgeTable() nft.Table { return nft.Table{Family: unix.NFPROTO_BRIDGE, Name: TableName} }

// Schema returns all features that cnibox makes in nftables. A new purpose is one
// more function that returns a feature.
func Schema() nft.Schema {
	return nft.Schema{
		masqueradeFeature("masq", "postrouting", nft.IfPattern, nft.InputLink()),
		masqueradeFeature("masq_kind", "veth_postrouting", nft.IfKind, nft.InputBegins("veth"), nft.InputKind()),
		macGuardFeature(), firewallFeature(), portMapFeature(), portRangeFeature(),
		uplinkFeature(), routedFeature("routed_kind", nft.IfKind, nft.InputBegins("veth"), nft.InputKind()),
		routedFeature("routed_group", nft.IfGroup, nft.InputGroup()), routedFeature("routed", nft.IfPattern, nft.InputLink()),
		macNATFeature(), macNATHostFeature(), egressFeature(),
	}
}

// masqueradeFeature masquerades networks behind the node's addresses. An element
// is one network: its subnet, and where its packets arrive, which input loads.
// Packets to the same subnet and to multicast addresses keep their source. Packets
// of the node itself have no input device, so they match no element.
//
//   - masq4 and masq6 have the name of the host device.
//   - masq_kind4 and masq_kind6 serve networks whose containers have one host
//     device each, the end of a pair with a name that begins with "veth". They
//     have the kind of the devices, "veth" or "netkit": nftables before 1.0 cannot list a name pattern within a set,
//     and aborts with -j.
func masqueradeFeature(name, chain string, key nft.Field, input ...nft.Part) nft.Feature {
	table := inetTable()
	masq4 := &nft.Set{Table: table, Name: name + "4", Key: []nft.Field{key, nft.IP4Prefix}}
	masq6 := &nft.Set{Table: table, Name: name + "6", Key: []nft.Field{key, nft.IP6Prefix}}
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{masq4, masq6},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: chain, Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT,
				Rules: masqueradeRules(nft.Masquerade(), masq4, masq4, masq6, masq6, input...),
			}}
		},
	}
}

// masqueradeRules masquerade sources in a from set whose destination is outside the
// near set of the family. input loads the first field of the sets' keys.
func masqueradeRules(masquerade nft.Part, near4, from4, near6, from6 *nft.Set, input ...nft.Part) []nft.Rule {
	rule := func(parts ...nft.Part) nft.Rule { return slices.Concat(input, parts) }
	return []nft.Rule{
		nft.NewRule(nft.DestinationIn("224.0.0.0/4"), nft.Return()),
		rule(nft.Destination4(), nft.In(near4), nft.Return()),
		rule(nft.Source4(), nft.In(from4), masquerade),
		nft.NewRule(nft.DestinationIn("ff00::/8"), nft.Return()),
		rule(nft.Destination6(), nft.In(near6), nft.Return()),
		rule(nft.Source6(), nft.In(from6), masquerade),
	}
}

// Names of the sets of egressFeature, for the family "4" or "6", which follows.
const (
	EgressSet     = "egress"
	EgressNearSet = "egress_near"
)

// priorityEgress is before the chains that masquerade, of cnibox and of other programs: the first
// chain that translates a connection's source decides.
const priorityEgress = nft.PrioritySourceNAT - 1

// egressFeature translates the sources of single pods to an address of the node that the
// configuration names.
//
//   - egress4 maps (host device, pod's address) to the address that the packets leave with.
//   - egress_near4 has pairs (host device, prefix). The chain ignores packets to these
//     destinations, so that they leave as if it were not there.
func egressFeature() nft.Feature {
	table := inetTable()
	sets := func(suffix string, address, prefix nft.Field) (near, from *nft.Set) {
		return &nft.Set{Table: table, Name: EgressNearSet + suffix, Key: []nft.Field{nft.IfPattern, prefix}},
			&nft.Set{Table: table, Name: EgressSet + suffix, Key: []nft.Field{nft.IfName, address}, Data: []nft.Field{address}}
	}
	near4, from4 := sets("4", nft.IP4Addr, nft.IP4Prefix)
	near6, from6 := sets("6", nft.IP6Addr, nft.IP6Prefix)
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{near4, near6, from4, from6},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "egress_postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: priorityEgress,
				Rules: []nft.Rule{
					nft.NewRule(nft.DestinationIn("224.0.0.0/4"), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Destination4(), nft.In(near4), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Source4(), nft.SourceFrom(from4, unix.NFPROTO_IPV4)),
					nft.NewRule(nft.DestinationIn("ff00::/8"), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Destination6(), nft.In(near6), nft.Return()),
					nft.NewRule(nft.InputLink(), nft.Source6(), nft.SourceFrom(from6, unix.NFPROTO_IPV6)),
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
