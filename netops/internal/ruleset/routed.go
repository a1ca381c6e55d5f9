package ruleset

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// RoutedMark is the bit of the packet mark and the connection mark that makes
	// packets leave by the node's first NIC. It is used only if several NICs are
	// in use. AWS's CNI uses the same bit; kube-proxy uses 0x4000 and 0x8000.
	RoutedMark = 1 << routedMarkBit

	// UplinkSet is the name of the set that holds the first NIC if several are in
	// use.
	UplinkSet = "routed_uplink"

	routedMarkBit = 7
	// priorityMangle is NF_IP_PRI_MANGLE of linux/netfilter_ipv4.h. At this
	// priority connections are tracked, and destinations are not translated yet.
	priorityMangle = -150
	// priorityTranslated is after PriorityPublished: destinations are
	// translated.
	priorityTranslated = -90
)

// uplinkFeature serves nodes with several NICs. routed_uplink holds the first NIC.
// Replies to connections that entered through it leave through it, whatever NIC
// owns the pod's address. Packets get the RoutedMark of their connection.
//
// The rules run before destinations are translated, because connection tracking
// may not translate a service's node port (IPVS).
func uplinkFeature() nft.Feature {
	uplink := &nft.Set{Table: inetTable(), Name: UplinkSet, Key: []nft.Field{nft.IfName}}
	return nft.Feature{
		Table: inetTable(),
		Sets:  []*nft.Set{uplink},
		Chains: func() []nft.Chain {
			return []nft.Chain{{
				Name: "routed_incoming", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityMangle,
				Rules: []nft.Rule{
					nft.NewRule(nft.Tracked(unix.NFT_CT_MARK, RoutedMark), nft.SetMarkBit(routedMarkBit)),
					nft.NewRule(isNew(), nft.InputLink(), nft.In(uplink), nft.ToThisNode(), nft.SetConnectionMarkBit(routedMarkBit)),
				},
			}}
		},
	}
}

func isNew() nft.Part { return nft.Tracked(unix.NFT_CT_STATE, 1<<3) } // NF_CT_STATE_BIT(IP_CT_NEW)

// routedFeature serves pods that are routed with addresses of the cloud's
// network. In the sets of each family, 4 or 6, the key is the kind of the pods'
// interfaces on the host ("veth", "netkit") and a prefix:
//
//   - routed_kind4 holds sources that are masqueraded if the destination is
//     outside routed_kind_near4.
//   - routed_kind_near4 holds destinations that are reached with the pods' own
//     addresses.
//   - routed_kind_out4 holds sources whose connections to destinations outside
//     routed_kind_near4 leave by the node's first NIC. It is used if several NICs
//     are in use, because only the first NIC's address is the node's. The packets
//     get RoutedMark; a policy rule looks up the main table for them.
//
// The rules for the pods' packets run after destinations are translated, because
// a service's address is not in the cloud's network.
//
// The feature "routed_group" has the same sets with the group of the interfaces in
// the keys. It serves networks whose interfaces' names do not begin with "veth".
// The feature "routed" has an interface's name. It serves addresses without a known
// network. input loads the keys'
// first field.
func routedFeature(name string, key nft.Field, input ...nft.Part) nft.Feature {
	table := inetTable()
	sets := func(name string) (four, six *nft.Set) {
		return &nft.Set{Table: table, Name: name + "4", Key: []nft.Field{key, nft.IP4Prefix}},
			&nft.Set{Table: table, Name: name + "6", Key: []nft.Field{key, nft.IP6Prefix}}
	}
	from4, from6 := sets(name)
	near4, near6 := sets(name + "_near")
	out4, out6 := sets(name + "_out")
	rule := func(parts ...nft.Part) nft.Rule { return slices.Concat([]nft.Part{isNew()}, input, parts) }
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{from4, from6, near4, near6, out4, out6},
		Chains: func() []nft.Chain {
			return []nft.Chain{
				{
					Name: name + "_outgoing", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityTranslated,
					Rules: []nft.Rule{
						nft.NewRule(isNew(), nft.DestinationIn("224.0.0.0/4"), nft.Return()),
						rule(nft.Destination4(), nft.In(near4), nft.Return()),
						rule(nft.Source4(), nft.In(out4), nft.SetConnectionMarkBit(routedMarkBit), nft.SetMarkBit(routedMarkBit)),
						nft.NewRule(isNew(), nft.DestinationIn("ff00::/8"), nft.Return()),
						rule(nft.Destination6(), nft.In(near6), nft.Return()),
						rule(nft.Source6(), nft.In(out6), nft.SetConnectionMarkBit(routedMarkBit), nft.SetMarkBit(routedMarkBit)),
					},
				},
				{
					Name: name + "_postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT,
					Rules: masqueradeRules(nft.MasqueradeAtRandom(), near4, from4, near6, from6, input...),
				},
			}
		},
	}
}
