package podtable

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// The chains that check sources: sources that of all packets, and of_link that of packets from a pod that is not on a bridge.
const (
	sourcesChain     = "sources"
	ofLinkChain      = "of_link"
	sourceRouteChain = "source_route"
)

// sourceRules drop packets with the address of a pod of this node that arrive on a link to which no route to the pod leads. BridgeTable checks
// those between the ports of a bridge.
func sourceRules() []nft.Rule {
	rules := []nft.Rule{nft.NewRule(nft.InputLink(), in(routedLinks), nft.Goto(ofLinkChain)), renamedFrom(routedLinks)}
	for _, v6 := range []bool{false, true} {
		rules = append(rules, closing(wayForgedPod,
			family(v6), address(v6, true), in(podSet(addressSet, v6)), nft.InputLink(), notIn(bridgeSet), nft.NoRouteBack(), denied()))
	}
	return rules
}

// ofLinkRules drop packets from a pod whose source no route to the pod's link has. The first rules only save the search for a route.
func ofLinkRules() (rules []nft.Rule) {
	for _, v6 := range []bool{false, true} {
		rules = append(rules, nft.NewRule(family(v6), nft.InputLink(), address(v6, true), in(podSet(routedSet, v6)), nft.Accept()))
	}
	return append(rules, closing(wayForgedSource, nft.NoRouteBack(), denied()))
}

// relatedRules drop ICMP errors to or from a selected pod by a pod that is no end of the quoted connection. Those of routers pass.
func relatedRules(pods string, isSource bool) (rules []nft.Rule) {
	for _, v6 := range []bool{false, true} {
		noEnd := func(direction uint8) nft.Part {
			return nft.Together(address(v6, true), sourceOf(v6, direction), notIn(podSet(self, v6)))
		}
		rules = append(rules, closing(wayRelated, nft.OfProtocol(either(v6, byte(unix.IPPROTO_ICMP), unix.IPPROTO_ICMPV6)), state(stateRelated), family(v6),
			address(v6, isSource), in(podSet(pods+strays, v6)), address(v6, true), in(podSet(addressSet, v6)), noEnd(original), noEnd(reply), denied()))
	}
	return rules
}

// The options of IPv4 by which a packet names its next hops (RFC 791, section 3.1), the operation of exthdr for options, which x/sys lacks, and the
// size of a header without options.
const (
	looseRoute, strictRoute = 131, 137
	ipv4Options             = 2
	plainHeader             = 5
)

// hasOptions matches packets of IPv4 whose header has options, hasOption those with one of them, and hasRouting those of IPv6 with a routing header.
func hasOptions() nft.Part {
	return nft.Together(nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, 0, nft.InetProto, 0), nft.Masked([]byte{0xf}), nft.Compared(unix.NFT_CMP_NEQ, []byte{plainHeader}))
}

func hasOption(kind uint8) nft.Part { return nft.HasHeader(ipv4Options, kind) }
func hasRouting() nft.Part          { return nft.HasHeader(unix.NFT_EXTHDR_OP_IPV6, unix.IPPROTO_ROUTING) }

// toSourceRoute are the first rules of a packet: those with options of IPv4, or a routing header of IPv6, go on to the chain source_route.
func toSourceRoute() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(family(false), hasOptions(), nft.Jump(sourceRouteChain)),
		nft.NewRule(family(true), hasRouting(), nft.Jump(sourceRouteChain)),
	}
}

// sourceRouteRules drop packets with a source route that leave a pod that policies select for egress, or that go to a pod. The node follows such
// routes where an administrator allowed it (accept_source_route, seg6_enabled). Then the address that the chains see is not the one to
// which the packet goes, or its connection is another one. BridgeTable drops those to a pod on a bridge, which have no mark.
func sourceRouteRules() (rules []nft.Rule) {
	of := func(v6, isSource bool, direction string) nft.Part {
		return nft.Together(family(v6), address(v6, isSource), in(podSet(direction+strays, v6)))
	}
	for _, option := range []uint8{looseRoute, strictRoute} {
		has := nft.Together(family(false), hasOption(option))
		rules = append(rules,
			closing(waySourceRoute, has, of(false, true, egressChain), denied()),
			closing(waySourceRoute, has, nft.OutputLink(), in(routedLinks), denied()))
	}
	return append(rules,
		closing(waySourceRoute, of(true, true, egressChain), denied()),
		closing(waySourceRoute, of(true, false, ingressChain), denied()))
}
