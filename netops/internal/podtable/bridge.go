package podtable

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The chains of BridgeTable.
const (
	framesChain  = "frames"
	toPodChain   = "to_pod"
	fromPodChain = "from_pod"
)

// The sets of BridgeTable, and the set of Table that has bridges. Those of addresses get the family's suffix.
const (
	egressPorts  = PodSets + "ports_" + egressChain
	ingressPorts = PodSets + "ports_" + ingressChain
	dhcpSet      = PodSets + "dhcp4"
)

// bridgePriority is NF_BR_PRI_FILTER_BRIDGED, which is before br_netfilter.
const bridgePriority = -200

// bridgeForward is NF_BR_FORWARD.
const bridgeForward = 2

// portElements returns the elements of an address of a pod that policies select and that is on a bridge's port.
func portElements(a netip.Addr, p *Pod) (all []*nft.Element) {
	for set, chain := range map[string]string{egressPorts: p.Egress, ingressPorts: p.Ingress} {
		if chain != "" {
			all = append(all, &nft.Element{Set: set, Key: []string{p.Port}, Label: p.Label})
		}
	}
	if a.Is4() {
		all = append(all, &nft.Element{Set: dhcpSet, Key: []string{p.Bridge, p.Bridge, a.String()}, Label: p.Label})
	}
	return all
}

// bridgeChains returns the chains of BridgeTable. Like the base chains of Table, frames drops everything after another program's flush. The others
// cannot: the node would be unreachable by its bridges.
func bridgeChains() []nft.Chain {
	return append(portChains(), []nft.Chain{
		{Name: toPodChain},
		{Name: fromPodChain},
		{Name: unmarkedChain},
		{Name: framesChain, Kind: "filter", Hook: bridgeForward, Priority: bridgePriority, Drop: true},
		{Name: judgedChain, Kind: "filter", Hook: bridgeForward, Priority: behindNetfilter},
		{Name: ofBridgeChain, Kind: "filter", Hook: bridgeLocalOut, Priority: behindNetfilter},
	}...)
}

// BridgeBase returns the requests that make BridgeTable. If it exists, the kernel refuses them with EEXIST. With ofAllPods the caller adds the
// elements of all pods in the same transaction. An ADD knows one pod: without the agent, the links of the other pods must not count as renamed
// after another program deleted the table.
func BridgeBase(ofAllPods bool) []nlconn.Message {
	f := bridgeFeature()
	f.Chains = bridgeChains
	msgs := f.Messages()
	for _, c := range bridgeChains() {
		msgs = append(msgs, ruleMessages(f.Table, c.Name, slices.DeleteFunc(bridgeRules(c.Name), func(r nft.Rule) bool {
			return !ofAllPods && r.Comment() == wayRenamed
		}))...)
	}
	return msgs
}

// BridgeChains returns the number of rules in each chain of BridgeTable.
func BridgeChains() map[string]int {
	counts := map[string]int{}
	for _, c := range bridgeChains() {
		counts[c.Name] = len(bridgeRules(c.Name))
	}
	return counts
}

// group matches the messages of ICMPv6 by which hosts join multicast groups, or those of neighbour discovery (RFC 2710, RFC 4861, RFC 3810). A bridge
// forwards neighbour solicitations only to the ports that joined their groups. Their hop limit says that no router forwarded them.
type group struct{ first, last, hops byte }

func groups() []group {
	const first, last, report2, mldHops = 130, 132, 143, 1
	return []group{{first, last, mldHops}, {report2, report2, mldHops}, {ndFirst, ndLast, ndHopLimit}}
}

func (g group) match() nft.Part {
	return nft.Together(etherType(true), icmp6(g.first, g.last), hopLimit(unix.NFT_CMP_EQ, g.hops))
}

// dhcpPorts returns the ports of DHCP (RFC 2131, section 4.1, and RFC 8415, section 7.2).
func dhcpPorts(v6 bool) (client, server uint16) {
	return either(v6, uint16(dhcpClient4), dhcpClient6), either(v6, uint16(dhcpServer4), dhcpServer6)
}

const (
	dhcpServer4, dhcpClient4 = 67, 68
	dhcpServer6, dhcpClient6 = 547, 546
)

// udpOnFrame matches UDP datagrams of a frame from one port to another.
func udpOnFrame(v6 bool, from, to uint16) nft.Part {
	return nft.Together(etherType(v6), datagram(from, to))
}

// bridgeRules returns the rules of a chain of BridgeTable.
func bridgeRules(chain string) []nft.Rule {
	switch chain {
	case framesChain:
		return framesRules()
	case judgedChain, ofBridgeChain:
		return judgedRules(chain)
	case unmarkedChain:
		return unmarkedRules()
	}
	if rules := portRules(chain); rules != nil {
		return rules
	}
	return podRules(chain)
}

func framesRules() []nft.Rule {
	return append([]nft.Rule{
		renamedTo(portLinks),
		nft.NewRule(nft.OutputLink(), in(ingressPorts), nft.Jump(toPodChain)),
		nft.NewRule(nft.InputLink(), in(egressPorts), nft.Jump(fromPodChain)),
	}, gatewayFrameRules()...)
}

// podRules returns the rules for frames to or from a pod that policies select.
func podRules(chain string) (rules []nft.Rule) {
	port, isSource := nft.OutputLink(), chain == fromPodChain
	if isSource {
		port = nft.InputLink()
	}
	back := func(parts ...nft.Part) { rules = append(rules, append(parts, nft.Return())) }
	drop := func(parts ...nft.Part) { rules = append(rules, closing(wayFrames, append(parts, nft.Drop())...)) }
	// Later rules would match the protocol in a tag if nft loads a saved table: it compares "meta protocol" then.
	drop(frameOf(unix.ETH_P_8021Q))
	drop(frameOf(unix.ETH_P_8021AD))
	back(frameOf(unix.ETH_P_ARP))
	for _, g := range groups() {
		back(g.match())
	}
	for _, v6 := range []bool{false, true} {
		from, to := dhcpPorts(v6)
		if isSource {
			rules = append(rules, closing(wayDHCP, udpOnFrame(v6, from, to), toNoRouter(), nft.Drop()))
		} else {
			from, to = to, from
		}
		back(udpOnFrame(v6, from, to))
	}
	drop(etherType(true), address(true, isSource), within(linkLocalNetwork())) // which Table does not know
	for _, v6 := range []bool{false, true} {
		back(etherType(v6), port, address(v6, isSource), in(podSet(portSet, v6)))
	}
	drop()
	return rules
}

// toNoRouter matches frames to a pod that may not answer as a router or a DHCP server does.
func toNoRouter() nft.Part {
	return nft.Together(nft.OutputLink(), in(portLinks), nft.OutputLink(), notIn(routerPorts))
}

// frameOf matches the type of a frame. Of a frame with a VLAN tag it is that of the tag.
func frameOf(kind uint16) nft.Part {
	const offset = 12
	return nft.Together(nft.Load(unix.NFT_PAYLOAD_LL_HEADER, offset, nft.InetService, 0), isNumber(kind))
}

func etherType(v6 bool) nft.Part { return frameOf(etherTypeOf(v6)) }

func etherTypeOf(v6 bool) uint16 { return either(v6, uint16(unix.ETH_P_IP), unix.ETH_P_IPV6) }

// icmp6 matches ICMPv6 messages by their types.
func icmp6(first, last byte) nft.Part {
	return nft.Together(nft.OfProtocol(unix.IPPROTO_ICMPV6), nft.Load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, nft.InetProto, 0), nft.Among([]byte{first}, []byte{last}))
}
