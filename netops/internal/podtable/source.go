package podtable

import "golang.org/x/sys/unix"

// The chains that check sources: sources that of all packets, and of_link that of packets from a pod that is not on a bridge.
const (
	sourcesChain     = "sources"
	ofLinkChain      = "of_link"
	sourceRouteChain = "source_route"
)

// sourceRules drop packets with the address of a pod of this node that arrive on a link to which no route to the pod leads. BridgeTable checks
// those between the ports of a bridge.
func sourceRules() []baseRule {
	rules := []baseRule{{fill: func(e expressions) {
		e.Meta(unix.NFT_META_IIFNAME, register)
		e.Lookup(routedLinks, false)
		e.Verdict(unix.NFT_GOTO, ofLinkChain)
	}}, renamedFrom(routedLinks)}
	for _, v6 := range []bool{false, true} {
		rules = append(rules, closing(wayForgedPod, func(e expressions) {
			e.family(v6)
			e.address(v6, true, register)
			e.Lookup(podSet(addressSet, v6), false)
			e.Meta(unix.NFT_META_IIFNAME, register)
			e.Lookup(bridgeSet, true)
			e.noRouteBack()
			dropCounted(e)
		}))
	}
	return rules
}

// ofLinkRules drop packets from a pod whose source no route to the pod's link has. The first rules only save the search for a route.
func ofLinkRules() (rules []baseRule) {
	for _, v6 := range []bool{false, true} {
		rules = append(rules, baseRule{fill: func(e expressions) {
			e.family(v6)
			e.Meta(unix.NFT_META_IIFNAME, register)
			e.address(v6, true, register+unix.IFNAMSIZ/4)
			e.Lookup(podSet(routedSet, v6), false)
			accept(e)
		}})
	}
	return append(rules, closing(wayForgedSource, func(e expressions) { e.noRouteBack(); dropCounted(e) }))
}

// noRouteBack matches packets that arrived on a link to which no route to the source leads (fib saddr . iif oif missing). It does not match the
// unspecified address where a host without an address uses it.
func (e expressions) noRouteBack() {
	e.Fib(unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_PRESENT, register)
	e.Compare(unix.NFT_CMP_EQ, register, make([]byte, 4)) // nft lists fewer bytes as "missing/8", which it does not load
}

// relatedRules drop ICMP errors to or from a selected pod by a pod that is no end of the quoted connection. Those of routers pass.
func relatedRules(pods string, isSource bool) (rules []baseRule) {
	for _, v6 := range []bool{false, true} {
		protocol := byte(unix.IPPROTO_ICMP)
		if v6 {
			protocol = unix.IPPROTO_ICMPV6
		}
		rules = append(rules, closing(wayRelated, func(e expressions) {
			e.protocol(protocol)
			e.state(stateRelated)
			e.family(v6)
			e.address(v6, isSource, register)
			e.Lookup(podSet(pods+strays, v6), false)
			e.address(v6, true, register)
			e.Lookup(podSet(addressSet, v6), false)
			for _, direction := range []uint8{original, reply} {
				e.address(v6, true, register)
				e.tuple(addressKey(v6), direction, next(v6))
				e.Lookup(podSet(self, v6), true)
			}
			dropCounted(e)
		}))
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

// option matches packets of IPv4 with an option. Most headers have none, which is seen first.
func (e expressions) option(kind uint8) {
	e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 0, 1, register)
	e.Mask(register, []byte{0xf}, nil)
	e.Compare(unix.NFT_CMP_NEQ, register, []byte{plainHeader})
	e.Exthdr(ipv4Options, kind, register)
	e.Compare(unix.NFT_CMP_EQ, register, []byte{1})
}

// toSourceRoute are the first rules of a packet: those with options of IPv4, or a routing header of IPv6, go on to the chain source_route.
func toSourceRoute() []baseRule {
	return []baseRule{
		{fill: func(e expressions) {
			e.family(false)
			e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 0, 1, register)
			e.Mask(register, []byte{0xf}, nil)
			e.Compare(unix.NFT_CMP_NEQ, register, []byte{plainHeader})
			e.Verdict(unix.NFT_JUMP, sourceRouteChain)
		}},
		{fill: func(e expressions) {
			e.family(true)
			e.Exthdr(unix.NFT_EXTHDR_OP_IPV6, unix.IPPROTO_ROUTING, register)
			e.Compare(unix.NFT_CMP_EQ, register, []byte{1})
			e.Verdict(unix.NFT_JUMP, sourceRouteChain)
		}},
	}
}

// sourceRouteRules drop packets with a source route that leave a pod that policies select for egress, or that go to a pod. The node follows such
// routes where an administrator allowed it (accept_source_route, seg6_enabled). Then the address that the chains see is not the one to
// which the packet goes, or its connection is another one. BridgeTable drops those to a pod on a bridge, which have no mark.
func sourceRouteRules() (rules []baseRule) {
	add := func(match ...func(expressions)) {
		rules = append(rules, closing(waySourceRoute, func(e expressions) {
			for _, fill := range match {
				fill(e)
			}
			dropCounted(e)
		}))
	}
	of := func(v6, isSource bool, direction string) func(expressions) {
		return func(e expressions) {
			e.family(v6)
			e.address(v6, isSource, register)
			e.Lookup(podSet(direction+strays, v6), false)
		}
	}
	for _, option := range []uint8{looseRoute, strictRoute} {
		has := func(e expressions) {
			e.family(false)
			e.Exthdr(ipv4Options, option, register)
			e.Compare(unix.NFT_CMP_EQ, register, []byte{1})
		}
		add(has, of(false, true, egressChain))
		add(has, func(e expressions) {
			e.Meta(unix.NFT_META_OIFNAME, register)
			e.Lookup(routedLinks, false)
		})
	}
	add(of(true, true, egressChain))
	add(of(true, false, ingressChain))
	return rules
}
