package podtable

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// The chains that mark packets which have passed the chains of policies, and their priority: behind those. The marks prove it to BridgeTable: a
// bridge has ways to a pod that do not lead through Table, and an administrator can switch br_netfilter off.
const (
	forwardedChain = "forwarded"
	sentChain      = "sent"
	markPriority   = ingressPriority + 1
)

// The bits of a packet's mark: it may enter a pod that policies select for ingress, or it may have left one that they select for egress. BridgeTable
// clears them. kube-proxy uses 0xc000, the role portmap 0x2000, Cilium 0xffff0f00, Calico 0xffff0000, Tailscale 0xff0000 and AWS's plugin 0x80. The
// kernel clears the mark of a packet from another namespace or host.
const (
	mayEnter = 0x1000
	mayLeave = 0x40
)

// marked matches packets whose mark has a bit, or with NFT_CMP_EQ none of some bits.
func marked(op, bits uint32) nft.Part { return nft.CompareMark(bits, op, 0) }

// markRules returns the rules of a chain that marks packets. The node's own packets pass no ingress policy. What IPVS sends has the source of
// another host.
func (f Form) markRules(chain string) (rules []nft.Rule) {
	add := func(parts ...nft.Part) { rules = append(rules, parts) }
	for _, v6 := range []bool{false, true} {
		add(family(v6), address(v6, false), in(podSet(ingressChain+strays, v6)), nft.SetMark(0, mayEnter))
		if chain == forwardedChain {
			add(family(v6), address(v6, true), in(podSet(egressChain+strays, v6)), nft.SetMark(0, mayLeave))
		}
	}
	if chain == sentChain && f.Services { // a rule of its own: the agent compares the numbers of rules
		add(nft.FromThisNode(unix.NFT_CMP_NEQ), nft.Accept())
	}
	if chain == sentChain {
		add(nft.OutputLink(), in(bridgeSet), nft.SetMark(0, mayEnter))
	}
	return rules
}

// gatewayFrameRules accept frames. Those to a port behind which the node has an interface become packets to the node: the chains judge them when
// they arrive on that interface, so here they get a mark. Those from there keep theirs. br_netfilter is next.
func gatewayFrameRules() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(nft.OutputLink(), nft.DestinationMAC(), in(gatewayPorts), nft.SetMark(mayEnter, mayLeave), nft.Accept()),
		nft.NewRule(nft.InputLink(), nft.SourceMAC(), in(gatewayPorts), nft.Accept()),
		clearMarks(),
		nft.NewRule(nft.Accept()),
	}
}

// clearMarks clears the marks, so that another program's are none.
func clearMarks() nft.Rule {
	return nft.NewRule(marked(unix.NFT_CMP_NEQ, mayEnter|mayLeave), nft.SetMark(mayEnter|mayLeave, 0))
}

// ofGateway accepts what a bridge forwards to and from the node's interface behind a port. Other chains judge it: when it comes from the node, or
// has arrived there.
func ofGateway() nft.Rule {
	return nft.NewRule(marked(unix.NFT_CMP_NEQ, mayEnter|mayLeave), nft.InputLink(), in(gatewayBridges), nft.Accept())
}

// The chains of BridgeTable that drop packets without marks: behind br_netfilter, and in what the node sends to its bridge.
const (
	judgedChain   = "judged"
	ofBridgeChain = "of_bridge"
	unmarkedChain = "unmarked"
	// behindNetfilter is behind NF_BR_PRI_BRNF.
	behindNetfilter = 1
	// bridgeLocalOut is NF_BR_LOCAL_OUT.
	bridgeLocalOut = 3
)

// judgedRules returns the rules of a chain that checks the marks.
func judgedRules(chain string) []nft.Rule {
	unmarked := func(link nft.Part, set string, bit uint32) nft.Rule {
		return nft.NewRule(link, in(set), marked(unix.NFT_CMP_EQ, bit), nft.Jump(unmarkedChain))
	}
	rules := append(portRouteRules(), unmarked(nft.OutputLink(), ingressPorts, mayEnter))
	if chain == ofBridgeChain {
		rules = append([]nft.Rule{renamedTo(portLinks)}, rules...)
	}
	if chain == judgedChain {
		rules = append(rules, unmarked(nft.InputLink(), egressPorts, mayLeave))
	} else { // of a pod that policies select for egress, through the bridge's MAC
		client, server := dhcpPorts(false)
		rules = append(rules, closing(wayDHCP, udpOnFrame(false, client, server), marked(unix.NFT_CMP_NEQ, mayLeave), toNoRouter(), nft.Drop()))
	}
	return append(rules, clearMarks())
}

// portRouteRules drop frames that bring a packet for a pod that policies select to another pod's port, or to another port of the same pod: Linux
// accepts a packet for each of its addresses on each interface. A router receives packets for others. Nor does a pod receive source routes, which a
// pod that follows them takes to its other address.
func portRouteRules() (rules []nft.Rule) {
	for _, option := range []uint8{looseRoute, strictRoute} { // most headers have no options, which is seen first
		rules = append(rules, closing(waySourceRoute, ofKind(unix.ETH_P_IP), hasOptions(), hasOption(option), toNoRouter(), nft.Drop()))
	}
	for _, v6 := range []bool{false, true} {
		rules = append(rules, closing(wayWeakHost, ofKind(etherTypeOf(v6)), address(v6, false), in(podSet(selectedSet, v6)),
			nft.OutputLink(), address(v6, false), notIn(podSet(portSet, v6)), toNoRouter(), denied()))
	}
	return rules
}

// unmarkedRules returns the rules for packets without a mark. The first let pass what a bridge, and servers by raw sockets, send without Table: the
// other chains say to and from which pods.
func unmarkedRules() (rules []nft.Rule) {
	pass := func(parts ...nft.Part) { rules = append(rules, append(parts, nft.Return())) }
	pass(frameOf(unix.ETH_P_ARP))
	for _, g := range groups() {
		pass(g.match())
	}
	for _, v6 := range []bool{false, true} {
		client, server := dhcpPorts(v6)
		pass(udpOnFrame(v6, client, server))
		pass(udpOnFrame(v6, server, client))
	}
	const groupAddresses = 0xe0
	pass(frameOf(unix.ETH_P_IP), nft.OfProtocol(unix.IPPROTO_IGMP), address(false, false), nft.Masked([]byte{0xf0, 0, 0, 0}), nft.Is([]byte{groupAddresses, 0, 0, 0}))
	for _, kind := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD, unix.ETH_P_IP, unix.ETH_P_IPV6} {
		rules = append(rules, closing(wayUnjudged, frameOf(kind), denied()))
	}
	return rules
}
