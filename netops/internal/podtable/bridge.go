package podtable

import (
	"encoding/binary"
	"net/netip"

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
		for _, r := range bridgeRules(c.Name) {
			if ofAllPods || r.way != wayRenamed {
				msgs = append(msgs, r.message(f.Table, c.Name))
			}
		}
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

func (g group) match(e expressions) {
	e.etherType(true)
	e.icmp6(g.first, g.last)
	e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, hopLimitOffset, 1, register)
	e.Compare(unix.NFT_CMP_EQ, register, []byte{g.hops})
}

// dhcpPorts returns the ports of DHCP (RFC 2131, section 4.1, and RFC 8415, section 7.2).
func dhcpPorts(v6 bool) (client, server uint16) {
	if v6 {
		return dhcpClient6, dhcpServer6
	}
	return dhcpClient4, dhcpServer4
}

const (
	dhcpServer4, dhcpClient4 = 67, 68
	dhcpServer6, dhcpClient6 = 547, 546
)

// udpOnFrame matches UDP datagrams of a frame from one port to another.
func (e expressions) udpOnFrame(v6 bool, from, to uint16) {
	e.etherType(v6)
	e.protocol(unix.IPPROTO_UDP)
	e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to))
}

// bridgeRules returns the rules of a chain of BridgeTable.
func bridgeRules(chain string) []baseRule {
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

func framesRules() []baseRule {
	leads := func(key uint32, set, chain string) baseRule {
		return baseRule{fill: func(e expressions) {
			e.Meta(key, register)
			e.Lookup(set, false)
			e.Verdict(unix.NFT_JUMP, chain)
		}}
	}
	return append([]baseRule{
		renamedTo(portLinks),
		leads(unix.NFT_META_OIFNAME, ingressPorts, toPodChain),
		leads(unix.NFT_META_IIFNAME, egressPorts, fromPodChain),
	}, gatewayFrameRules()...)
}

// podRules returns the rules for frames to or from a pod that policies select.
func podRules(chain string) (rules []baseRule) {
	port, isSource := uint32(unix.NFT_META_OIFNAME), chain == fromPodChain
	if isSource {
		port = unix.NFT_META_IIFNAME
	}
	back := func(fill func(expressions)) {
		rules = append(rules, baseRule{fill: func(e expressions) { fill(e); e.Verdict(unix.NFT_RETURN, "") }})
	}
	drop := func(fill func(expressions)) {
		rules = append(rules, closing(wayFrames, func(e expressions) { fill(e); e.Verdict(nft.VerdictDrop, "") }))
	}
	// Later rules would match the protocol in a tag if nft loads a saved table: it compares "meta protocol" then.
	drop(func(e expressions) { e.frameOf(unix.ETH_P_8021Q) })
	drop(func(e expressions) { e.frameOf(unix.ETH_P_8021AD) })
	back(func(e expressions) { e.frameOf(unix.ETH_P_ARP) })
	for _, g := range groups() {
		back(g.match)
	}
	for _, v6 := range []bool{false, true} {
		from, to := dhcpPorts(v6)
		if isSource {
			rules = append(rules, closing(wayDHCP, func(e expressions) { e.udpOnFrame(v6, from, to); e.toNoRouter(); e.Verdict(nft.VerdictDrop, "") }))
		} else {
			from, to = to, from
		}
		back(func(e expressions) { e.udpOnFrame(v6, from, to) })
	}
	drop(func(e expressions) { // which Table does not know
		e.etherType(true)
		e.address(true, isSource, register)
		e.network(linkLocalNetwork())
	})
	for _, v6 := range []bool{false, true} {
		back(func(e expressions) {
			e.etherType(v6)
			e.Meta(port, register)
			e.address(v6, isSource, register+unix.IFNAMSIZ/4)
			e.Lookup(podSet(portSet, v6), false)
		})
	}
	drop(func(expressions) {})
	return rules
}

// toNoRouter matches frames to a pod that may not answer as a router or a DHCP server does.
func (e expressions) toNoRouter() {
	for _, is := range []struct {
		set    string
		invert bool
	}{{portLinks, false}, {routerPorts, true}} {
		e.Meta(unix.NFT_META_OIFNAME, register)
		e.Lookup(is.set, is.invert)
	}
}

// frameOf matches the type of a frame. Of a frame with a VLAN tag it is that of the tag.
func (e expressions) frameOf(kind uint16) {
	const offset = 12
	e.Payload(unix.NFT_PAYLOAD_LL_HEADER, offset, 2, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, kind))
}

func (e expressions) etherType(v6 bool) { e.frameOf(etherTypeOf(v6)) }

func etherTypeOf(v6 bool) uint16 {
	if v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// icmp6 matches ICMPv6 messages by their types.
func (e expressions) icmp6(first, last byte) {
	e.protocol(unix.IPPROTO_ICMPV6)
	e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, register)
	if first == last {
		e.Compare(unix.NFT_CMP_EQ, register, []byte{first})
		return
	}
	e.Compare(unix.NFT_CMP_GTE, register, []byte{first})
	e.Compare(unix.NFT_CMP_LTE, register, []byte{last})
}
