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
		msgs = append(msgs, m)
		for _, r := range form.baseRules(c.Name) {
			msgs = append(msgs, r.message(Table(), c.Name))
		}
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

func accept(e expressions) { e.Verdict(nft.VerdictAccept, "") }

func dropCounted(e expressions) {
	e.Counter()
	e.Verdict(nft.VerdictDrop, "")
}

// baseRules returns the rules of a chain of Base. The policy of the base chains at the forward hook is drop and their
// last rule accepts, so that the node forwards nothing when another program flushes the table, until the agent or an administrator
// makes the rules again.
func (f Form) baseRules(chain string) (rules []baseRule) {
	add := func(fill func(expressions)) { rules = append(rules, baseRule{fill: fill}) }
	leave := func(op uint32) { // what the node made has one of its addresses here: IPVS translates the source later
		add(func(e expressions) { e.ofThisNode(op); accept(e) })
	}
	switch chain {
	case egressChain:
		rules = append(toSourceRoute(), ofGateway())
	case ingressChain:
		rules = []baseRule{ofGateway()}
	case sourceRouteChain:
		return sourceRouteRules()
	case Deny:
		if f.Log {
			return []baseRule{{fill: expressions.log}, {fill: dropCounted}}
		}
		return []baseRule{{fill: dropCounted}}
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
		add(func(e expressions) { e.state(stateEstablished); accept(e) })
		add(func(e expressions) { e.Verdict(unix.NFT_JUMP, chain+unestablished) })
	} else {
		add(func(e expressions) { e.notState(stateEstablished); e.Verdict(unix.NFT_JUMP, chain+unestablished) })
	}
	direction, from, to := uint8(original), uint16(dhcpClient4), uint16(dhcpServer4)
	if chain == ingressChain {
		direction, from, to = reply, to, from
	}
	add(func(e expressions) { e.dhcp(from, to); e.onBridge(direction); accept(e) })
	for _, v6 := range []bool{false, true} {
		add(podsOf(chain, v6, direction))
	}
	add(accept)
	return rules
}

// podsOf looks up the chain of a pod: the client of its egress, or the server of its ingress.
func podsOf(chain string, v6 bool, direction uint8) func(expressions) {
	return func(e expressions) {
		e.tuple(addressKey(v6), direction, register)
		e.LookupInto(podSet(chain, v6), unix.NFT_REG_VERDICT)
	}
}

// icmpErrors returns rules that accept errors that belong to a connection.
func icmpErrors() (rules []baseRule) {
	for _, p := range []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		rules = append(rules, baseRule{fill: func(e expressions) { e.protocol(p); e.state(stateRelated); accept(e) }})
	}
	return rules
}

// nodeRules returns the rules of the chains for connections of pods to their own node. A packet without a connection cannot be told from an
// answer to the node.
func (f Form) nodeRules(chain string) (rules []baseRule) {
	add := func(fill func(expressions)) { rules = append(rules, baseRule{fill: fill}) }
	if chain == ofNodeChain && f.Services {
		add(func(e expressions) { e.ofThisNode(unix.NFT_CMP_NEQ); accept(e) })
	}
	if f.KeepEstablished {
		add(func(e expressions) { e.state(stateEstablished); accept(e) })
	}
	rules = append(rules, icmpErrors()...)
	add(func(e expressions) { e.dhcp(dhcpClient4, dhcpServer4); accept(e) })
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
func (f Form) unestablishedRules(chain string) []baseRule {
	pods, isSource := egressChain, true
	if chain == ingressChain+unestablished {
		pods, isSource = ingressChain, false
	}
	rules := append([]baseRule{
		closing(wayRoutedND, func(e expressions) {
			e.family(true)
			e.icmp6(ndFirst, ndLast)
			e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, hopLimitOffset, 1, register)
			e.Compare(unix.NFT_CMP_NEQ, register, []byte{ndHopLimit})
			dropCounted(e)
		}),
		{fill: func(e expressions) { e.family(true); e.icmp6(ndFirst, ndLast); accept(e) }},
	}, relatedRules(pods, isSource)...)
	rules = append(rules, icmpErrors()...)
	for _, v6 := range []bool{false, true} {
		rules = append(rules, closing(wayStray, func(e expressions) { // not by the map of chains, which the kernel validates for each rule that uses it
			e.state(stateInvalid | stateUntracked)
			e.family(v6)
			e.address(v6, isSource, register)
			e.Lookup(podSet(pods+strays, v6), false)
			dropCounted(e)
		}))
		if !f.KeepEstablished {
			rules = append(rules, midstreamRules(podSet(pods+strays, v6), v6, !isSource)...)
		}
		if pods == ingressChain {
			rules = append(rules, closing(wayOwnAddress, func(e expressions) {
				e.tuple(addressKey(v6), original, register)
				e.destination(v6, next(v6))
				e.Lookup(podSet(self, v6), false)
				dropCounted(e)
			}))
		}
	}
	return rules
}

// The hop limit in the header of IPv6, and that of neighbour discovery, which no router forwards (RFC 4861, section 6.1).
const (
	hopLimitOffset = 7
	ndHopLimit     = 255
)

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
func midstreamRules(pods string, v6, isSource bool) (rules []baseRule) {
	for _, first := range []func(expressions){
		func(e expressions) {
			e.protocol(unix.IPPROTO_TCP)
			e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, tcpFlagsOffset, 1, register)
			e.Mask(register, []byte{tcpFlags}, nil)
			e.Compare(unix.NFT_CMP_NEQ, register, []byte{tcpSYN})
		},
		func(e expressions) {
			e.protocol(unix.IPPROTO_SCTP)
			e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, sctpChunkOffset, 1, register)
			e.Compare(unix.NFT_CMP_NEQ, register, []byte{sctpINIT})
		},
	} {
		rules = append(rules, closing(wayMidstream, func(e expressions) {
			first(e)
			e.state(stateNew)
			e.family(v6)
			e.address(v6, isSource, register)
			e.Lookup(pods, false)
			dropCounted(e)
		}))
	}
	return rules
}
