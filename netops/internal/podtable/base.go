package podtable

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Form selects the base chains and their rules.
type Form struct {
	// KeepEstablished accepts packets of established connections.
	KeepEstablished bool
	// Node makes the chains for the connections of pods to their own node.
	Node bool
	// Services makes the chains for connections to services of IPVS. IPVS takes the packets to a service from the node's input, and
	// passes them to the server as if the node had made them: they do not pass the forward hook, only the answers do.
	Services bool
	// Log passes denied packets to the group LogGroup of nfnetlink_log.
	Log bool
	// Sources makes the chains that check sources. They need the expression fib: a table without them is made first, so that pods are denied
	// everything on a kernel that lacks it.
	Sources bool
}

// LogGroup is the group of nfnetlink_log to which rules pass denied packets, LoggedPackets of them a second at most.
const (
	LogGroup      = 5021
	LoggedPackets = 50
)

// unestablished ends the names of the chains that packets pass first that are not part of an established connection.
const unestablished = "_unestablished"

// chains returns the chains of a Form. If another program flushes the table, those at the forward hook drop everything. Those of the
// node's own packets cannot: the node would be unreachable.
func (f Form) chains() []nft.Chain {
	all := []nft.Chain{
		{Name: Deny},
		{Name: sourceRouteChain},
		{Name: egressChain + unestablished},
		{Name: ingressChain + unestablished},
		{Name: egressChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: egressPriority, Drop: true},
		{Name: ingressChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: ingressPriority, Drop: true},
	}
	if f.Sources {
		all = append(all, nft.Chain{Name: ofLinkChain}, nft.Chain{Name: sourcesChain, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: nft.PriorityRaw})
	}
	if f.Node {
		all = append(all,
			nft.Chain{Name: toNodeChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: egressPriority},
			nft.Chain{Name: ofNodeChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: egressPriority})
	}
	all = append(all,
		nft.Chain{Name: forwardedChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: markPriority},
		nft.Chain{Name: sentChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: markPriority})
	if f.Services {
		all = append(all,
			nft.Chain{Name: serviceEgressChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: egressPriority},
			nft.Chain{Name: serviceIngressChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: ingressPriority})
	}
	return all
}

// Base returns the requests that make the table with its sets of pods and its base chains. If the table exists, the kernel
// refuses them with EEXIST.
func Base(form Form) []nlconn.Message {
	return append(Schema()[0].Messages(), RepairBase(form, nil)...)
}

// BaseChains returns the number of rules in each chain of Base.
func BaseChains(form Form) map[string]int {
	all := map[string]int{}
	for _, c := range form.chains() {
		all[c.Name] = len(form.baseRules(c.Name))
	}
	return all
}

// RepairBase returns the requests that replace the rules of the chains of Base, and make those chains that have lacks.
func RepairBase(form Form, have map[string]int) (msgs []nlconn.Message) {
	for _, c := range form.chains() {
		m := c.Message(Table())
		if _, exists := have[c.Name]; exists {
			m = Table().RuleMessage(unix.NFT_MSG_DELRULE, 0, c.Name)
		}
		msgs = append(append(msgs, m), ruleMessages(Table(), c.Name, form.baseRules(c.Name))...)
	}
	return msgs
}

// The types of ICMPv6 messages of neighbour discovery, from router solicitation to neighbour advertisement (RFC 4861,
// section 4). With br_netfilter they pass the chains when a bridge forwards them.
const ndFirst, ndLast = 133, 136

// The states of connection tracking, as bits (include/net/netfilter/nf_conntrack.h).
const (
	stateInvalid     = 1 << 0
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
	stateUntracked   = 1 << 6
)

// baseRules returns the rules of a chain of Base. The policy of the base chains at the forward hook is drop and their
// last rule accepts, so that the node forwards nothing when another program flushes the table, until the agent or an administrator
// makes the rules again.
func (f Form) baseRules(chain string) (rules []nft.Rule) {
	add := func(parts ...nft.Part) { rules = append(rules, parts) }
	leave := func(op uint32) { add(nft.FromThisNode(op), nft.Accept()) } // what the node made has one of its addresses here: IPVS translates the source later
	switch chain {
	case egressChain:
		rules = append(toSourceRoute(), ofGateway())
	case ingressChain:
		rules = []nft.Rule{ofGateway()}
	case sourceRouteChain:
		return sourceRouteRules()
	case Deny:
		if f.Log {
			rules = append(rules, LogRule())
		}
		return append(rules, nft.NewRule(denied()))
	case egressChain + unestablished, ingressChain + unestablished:
		return f.unestablishedRules(chain)
	case sourcesChain:
		return sourceRules()
	case ofLinkChain:
		return ofLinkRules()
	case toNodeChain, ofNodeChain:
		return f.nodeRules(chain)
	case forwardedChain, sentChain:
		return f.markRules(chain)
	case serviceEgressChain:
		chain = egressChain
		leave(unix.NFT_CMP_EQ)
	case serviceIngressChain:
		chain = ingressChain
		leave(unix.NFT_CMP_EQ)
	}
	if f.KeepEstablished {
		add(state(stateEstablished), nft.Accept())
		add(nft.Jump(chain + unestablished))
	} else {
		add(nft.NotTracked(unix.NFT_CT_STATE, stateEstablished), nft.Jump(chain+unestablished))
	}
	direction, from, to := uint8(original), uint16(dhcpClient4), uint16(dhcpServer4)
	if chain == ingressChain {
		direction, from, to = reply, to, from
	}
	add(dhcp(from, to), onBridge(direction), nft.Accept())
	for _, v6 := range []bool{false, true} {
		add(podsOf(chain, v6, direction))
	}
	add(nft.Accept())
	return rules
}

// podsOf looks up the chain of a pod: the client of its egress, or the server of its ingress.
func podsOf(chain string, v6 bool, direction uint8) nft.Part {
	return nft.Together(sourceOf(v6, direction), verdictFrom(podSet(chain, v6)))
}

// icmpErrors returns rules that accept errors that belong to a connection.
func icmpErrors() (rules []nft.Rule) {
	for _, p := range []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		rules = append(rules, nft.NewRule(nft.OfProtocol(p), state(stateRelated), nft.Accept()))
	}
	return rules
}

// nodeRules returns the rules of the chains for connections of pods to their own node. A packet without a connection cannot be told from an
// answer to the node.
func (f Form) nodeRules(chain string) (rules []nft.Rule) {
	add := func(parts ...nft.Part) { rules = append(rules, parts) }
	if chain == ofNodeChain && f.Services {
		add(nft.FromThisNode(unix.NFT_CMP_NEQ), nft.Accept())
	}
	if f.KeepEstablished {
		add(state(stateEstablished), nft.Accept())
	}
	rules = append(rules, icmpErrors()...)
	add(dhcp(dhcpClient4, dhcpServer4), nft.Accept())
	for _, v6 := range []bool{false, true} {
		if chain == ofNodeChain && !f.KeepEstablished {
			rules = append(rules, midstreamRules(podSet(egressChain+strays, v6), v6, false)...)
		}
		add(podsOf(egressChain, v6, original))
	}
	return rules
}

// unestablishedRules returns the rules for packets that are not part of an established connection. Packets of a connection do not pass
// them, so they cost these nothing.
func (f Form) unestablishedRules(chain string) []nft.Rule {
	pods, isSource := egressChain, true
	if chain == ingressChain+unestablished {
		pods, isSource = ingressChain, false
	}
	discovery := nft.Together(family(true), icmp6(ndFirst, ndLast))
	rules := append([]nft.Rule{
		closing(wayRoutedND, discovery, hopLimit(unix.NFT_CMP_NEQ, ndHopLimit), denied()),
		nft.NewRule(discovery, nft.Accept()),
	}, relatedRules(pods, isSource)...)
	rules = append(rules, icmpErrors()...)
	for _, v6 := range []bool{false, true} {
		// Not by the map of chains, which the kernel validates for each rule that uses it.
		rules = append(rules, closing(wayStray,
			state(stateInvalid|stateUntracked), family(v6), address(v6, isSource), in(podSet(pods+strays, v6)), denied()))
		if !f.KeepEstablished {
			rules = append(rules, midstreamRules(podSet(pods+strays, v6), v6, !isSource)...)
		}
		if pods == ingressChain {
			rules = append(rules, closing(wayOwnAddress, sourceOf(v6, original), destination(v6), in(podSet(self, v6)), denied()))
		}
	}
	return rules
}

// The hop limit in the header of IPv6, and that of neighbour discovery, which no router forwards (RFC 4861, section 6.1).
const (
	hopLimitOffset = 7
	ndHopLimit     = 255
)

func hopLimit(op uint32, hops byte) nft.Part {
	return nft.Together(nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, hopLimitOffset, nft.InetProto, 0), nft.Compared(op, []byte{hops}))
}

// The flags in the header of TCP, and the type of the first chunk of SCTP (RFC 9293, section 3.1, and RFC 9260, section 3).
const (
	tcpFlagsOffset  = 13
	tcpFlags        = 0x17 // ACK, RST, SYN, FIN
	tcpSYN          = 0x02
	sctpChunkOffset = 12
	sctpINIT        = 1
)

// midstreamRules return rules that drop packets that look like the first one of a connection, and are not: conntrack has lost the connection's
// entry, or never had one. A server's packet would make an entry with the server as the client, and so pass the policies for its clients. Which end
// is the server is unknown: no packet of a pod whose clients policies select makes an entry, and none to a pod whose servers they select.
func midstreamRules(pods string, v6, isSource bool) []nft.Rule {
	later := func(protocol byte, offset uint32, mask nft.Part, first byte) nft.Rule {
		return closing(wayMidstream,
			nft.OfProtocol(protocol), nft.Load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, nft.InetProto, 0), mask, nft.Compared(unix.NFT_CMP_NEQ, []byte{first}),
			state(stateNew), family(v6), address(v6, isSource), in(pods), denied())
	}
	return []nft.Rule{
		later(unix.IPPROTO_TCP, tcpFlagsOffset, nft.Masked([]byte{tcpFlags}), tcpSYN),
		later(unix.IPPROTO_SCTP, sctpChunkOffset, nft.Together(), sctpINIT),
	}
}
