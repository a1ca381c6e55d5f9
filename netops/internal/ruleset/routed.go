package ruleset

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// RoutedMark is the bit of a packet's and of a connection's mark that has what
	// several NICs carry leave by the node's first one. It is the bit of AWS's CNI;
	// kube-proxy's are 0x4000 and 0x8000.
	RoutedMark = 1 << routedMarkBit

	// UplinkSet is the set of the first NICs of several.
	UplinkSet = "routed_uplink"

	routedMarkBit = 7
	// priorityMangle is NF_IP_PRI_MANGLE of linux/netfilter_ipv4.h: connections are
	// tracked by then, and destinations not translated yet.
	priorityMangle = -150
	// priorityTranslated is after priorityDestinationNAT.
	priorityTranslated = -90
)

// routedFeature is for pods that are routed with addresses of the cloud's own
// network. Of a family, 4 or 6, keys are the host's end of pods, or a pattern of
// those, and a prefix:
//
//   - routed4 holds what is hidden behind the node beyond routed_near4: sources.
//   - routed_near4 holds what is reached with the pods' own addresses: destinations.
//   - routed_out4 holds sources whose connections beyond routed_near4 leave by the
//     node's first NIC, where several are in use: only that one's address is the
//     node's. Packets get RoutedMark, by which a rule leads them to the main table.
//
// routed_uplink holds the first NIC where several are in use: connections that come
// in by it to the node are answered by it, whichever NIC the pod's address is of that
// they are led to. Destinations are judged before they are translated there (a service's
// port of the node may be no business of connection tracking's, as with IPVS), and
// after that for what pods send: a service's address is none of the cloud's network.
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

// masqueradeRandomly is masquerade with ports at random: of many connections that
// begin at once fewer want one port (nft's fully-random).
func masqueradeRandomly() nft.Part {
	return func(b *nft.Builder) { b.Exprs = append(b.Exprs, &expr.Masq{FullyRandom: true}) }
}
