package ruleset

import (
	"github.com/google/nftables/expr"
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
	// priorityTranslated is after priorityDestinationNAT: destinations are
	// translated.
	priorityTranslated = -90
)

// routedFeature serves pods that are routed with addresses of the cloud's
// network. In the sets of each family, 4 or 6, the key is a host interface of
// pods (or a name pattern) and a prefix:
//
//   - routed4 holds sources that are masqueraded if the destination is outside
//     routed_near4.
//   - routed_near4 holds destinations that are reached with the pods' own
//     addresses.
//   - routed_out4 holds sources whose connections to destinations outside
//     routed_near4 leave by the node's first NIC. It is used if several NICs are
//     in use, because only the first NIC's address is the node's. The packets get
//     RoutedMark; a policy rule looks up the main table for them.
//
// routed_uplink holds the first NIC if several are in use. Replies to connections
// that entered through the first NIC leave through it, whatever NIC owns the
// pod's address.
//
// The rule for routed_uplink runs before destinations are translated, because
// connection tracking may not translate a service's node port (IPVS). The rules
// for the pods' packets run after the translation, because a service's address is
// not in the cloud's network.
func routedFeature() nft.Feature {
	table := inetTable()
	set := func(name string, key ...nft.Field) *nft.Set { return &nft.Set{Table: table, Name: name, Key: key} }
	from4, from6 := set("routed4", nft.IfPattern, nft.IP4Prefix), set("routed6", nft.IfPattern, nft.IP6Prefix)
	near4, near6 := set("routed_near4", nft.IfPattern, nft.IP4Prefix), set("routed_near6", nft.IfPattern, nft.IP6Prefix)
	out4, out6 := set("routed_out4", nft.IfPattern, nft.IP4Prefix), set("routed_out6", nft.IfPattern, nft.IP6Prefix)
	uplink := set(UplinkSet, nft.IfName)
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{from4, from6, near4, near6, out4, out6, uplink},
		Chains: func() []nft.Chain {
			isNew := nft.Tracked(expr.CtKeySTATE, expr.CtStateBitNEW)
			return []nft.Chain{
				{
					Name: "routed_incoming", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityMangle,
					Rules: []nft.Rule{
						nft.NewRule(isNew, nft.InputLink(), nft.In(uplink), nft.ToThisNode(), nft.SetConnectionMarkBit(routedMarkBit)),
					},
				},
				{
					Name: "routed_outgoing", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityTranslated,
					Rules: []nft.Rule{
						nft.NewRule(nft.Tracked(expr.CtKeyMARK, RoutedMark), nft.SetMarkBit(routedMarkBit)),
						nft.NewRule(isNew, nft.DestinationIn("224.0.0.0/4"), nft.Return()),
						nft.NewRule(isNew, nft.InputLink(), nft.Destination4(), nft.In(near4), nft.Return()),
						nft.NewRule(isNew, nft.InputLink(), nft.Source4(), nft.In(out4), nft.SetConnectionMarkBit(routedMarkBit), nft.SetMarkBit(routedMarkBit)),
						nft.NewRule(isNew, nft.DestinationIn("ff00::/8"), nft.Return()),
						nft.NewRule(isNew, nft.InputLink(), nft.Destination6(), nft.In(near6), nft.Return()),
						nft.NewRule(isNew, nft.InputLink(), nft.Source6(), nft.In(out6), nft.SetConnectionMarkBit(routedMarkBit), nft.SetMarkBit(routedMarkBit)),
					},
				},
				{
					Name: "routed_postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT,
					Rules: []nft.Rule{
						nft.NewRule(nft.DestinationIn("224.0.0.0/4"), nft.Return()),
						nft.NewRule(nft.InputLink(), nft.Destination4(), nft.In(near4), nft.Return()),
						nft.NewRule(nft.InputLink(), nft.Source4(), nft.In(from4), masqueradeRandomly()),
						nft.NewRule(nft.DestinationIn("ff00::/8"), nft.Return()),
						nft.NewRule(nft.InputLink(), nft.Destination6(), nft.In(near6), nft.Return()),
						nft.NewRule(nft.InputLink(), nft.Source6(), nft.In(from6), masqueradeRandomly()),
					},
				},
			}
		},
	}
}

// masqueradeRandomly masquerades with random ports (nft's fully-random). It makes
// it less likely that simultaneous new connections choose the same port.
func masqueradeRandomly() nft.Part {
	return func(b *nft.Builder) { b.Exprs = append(b.Exprs, &expr.Masq{FullyRandom: true}) }
}
