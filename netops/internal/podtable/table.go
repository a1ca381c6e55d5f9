package podtable

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Deny is the chain that drops everything. It is the chain of a pod whose policies are unknown.
const Deny = "deny"

// Denied is the verdict of a rule that denies a connection. All rules that do go to one chain, which can log.
const Denied = "goto " + Deny

// PodSets is the prefix of the sets that have the pods of this node. ADD and DEL change these; the agent alone changes
// the other sets.
const PodSets = "pod_"

// self names the sets of the addresses of pods as pairs: those of connections from a pod to itself. strays ends the names of the sets of pods
// whose packets without a connection are dropped: no rule of a policy matches these.
const (
	self   = "self"
	strays = "_strays"
)

// The base chains. A connection between two pods of this node passes both first ones. What one accepts, the other can still drop. Then
// come those for the connections of pods to their own node, and those for packets to the servers of IPVS.
const (
	egressChain         = "egress"
	ingressChain        = "ingress"
	toNodeChain         = "to_node"
	ofNodeChain         = "of_node"
	serviceEgressChain  = "service_egress"
	serviceIngressChain = "service_ingress"
	// Before the chains of most programs, which drop or accept by other rules.
	egressPriority  = nft.PriorityFilter - 10
	ingressPriority = nft.PriorityFilter - 9
)

// Table returns the table.
func Table() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox_policy"} }

// Schema returns the sets of pods, for an nft.Client that reads and changes them.
func Schema() nft.Schema {
	f := nft.Feature{Table: Table(), Chains: func() []nft.Chain { return nil }}
	for _, v6 := range []bool{false, true} {
		for _, direction := range []string{egressChain, ingressChain} {
			key := []nft.Field{addressField(v6)}
			f.Sets = append(f.Sets,
				&nft.Set{Table: Table(), Name: podSet(direction, v6), Key: key, Data: []nft.Field{nft.Verdict}},
				&nft.Set{Table: Table(), Name: podSet(direction+strays, v6), Key: key})
		}
		f.Sets = append(f.Sets, &nft.Set{Table: Table(), Name: podSet(self, v6), Key: []nft.Field{addressField(v6), addressField(v6)}})
	}
	f.Sets = append(f.Sets, &nft.Set{Table: Table(), Name: dhcpSet, Key: []nft.Field{nft.IfName, nft.IfName, nft.IP4Addr}})
	return nft.Schema{f, bridgeFeature()}
}

func addressField(v6 bool) nft.Field {
	if v6 {
		return nft.IP6Addr
	}
	return nft.IP4Addr
}

func podSet(what string, v6 bool) string { return PodSets + what + Suffix(v6) }

// Suffix returns the end of the name of a set of one address family.
func Suffix(v6 bool) string {
	if v6 {
		return "6"
	}
	return "4"
}

// IsPodSet reports whether a set has the pods of this node.
func IsPodSet(name string) bool { return strings.HasPrefix(name, PodSets) }

// Pod is what the elements of a pod depend on.
type Pod struct {
	// Egress and Ingress are the pod's chains. One is "" in a direction in which no policy selects the pod.
	Egress, Ingress string
	// Label is that of the pod's attachment.
	Label string
	// Port is the pod's interface on the host if it is a port of Bridge. Otherwise both are "".
	Port, Bridge string
}

// Elements returns the elements of an address of a pod. Those of its port are the same for each address.
func Elements(a netip.Addr, p *Pod) (all []*nft.Element) {
	text := a.String()
	for _, d := range []struct{ name, chain string }{{egressChain, p.Egress}, {ingressChain, p.Ingress}} {
		if d.chain == "" {
			continue
		}
		if d.chain != Deny {
			d.chain += Suffix(a.Is6())
		}
		all = append(all,
			&nft.Element{Set: podSet(d.name, a.Is6()), Key: []string{text}, Value: []string{"goto " + d.chain}, Label: p.Label},
			&nft.Element{Set: podSet(d.name+strays, a.Is6()), Key: []string{text}, Label: p.Label})
	}
	if len(all) > 0 {
		all = append(all, &nft.Element{Set: podSet(self, a.Is6()), Key: []string{text, text}, Label: p.Label})
		if p.Port != "" {
			all = append(all, portElements(a, p)...)
		}
	}
	return all
}

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
}

// LogGroup is the group of nfnetlink_log to which rules pass denied packets, LoggedPackets of them a second at most.
const (
	LogGroup      = 5021
	LoggedPackets = 50
)

// chains returns the chains of a Form. If another program flushes the table, those at the forward hook drop everything. Those of the
// node's own packets cannot: the node would be unreachable.
func (f Form) chains() []nft.Chain {
	all := []nft.Chain{
		{Name: Deny},
		{Name: egressChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: egressPriority, Drop: true},
		{Name: ingressChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: ingressPriority, Drop: true},
	}
	if f.Node {
		all = append(all,
			nft.Chain{Name: toNodeChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: egressPriority},
			nft.Chain{Name: ofNodeChain, Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: egressPriority})
	}
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
		for _, fill := range form.baseRules(c.Name) {
			msgs = append(msgs, ruleMessage(Table(), c.Name, fill))
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
	stateUntracked   = 1 << 6
)

// baseRules returns the rules of a chain of Base. The policy of the base chains at the forward hook is drop and their
// last rule accepts, so that the node forwards nothing when another program flushes the table, until the agent or an administrator
// makes the rules again.
func (f Form) baseRules(chain string) []func(expressions) {
	accept := func(e expressions) { e.Verdict(nft.VerdictAccept, "") }
	var rules []func(expressions)
	leave := func(op uint32) { // what the node made has one of its addresses here: IPVS translates the source later
		rules = append(rules, func(e expressions) { e.ofThisNode(op); accept(e) })
	}
	switch chain {
	case serviceEgressChain:
		chain = egressChain
		leave(unix.NFT_CMP_EQ)
	case serviceIngressChain:
		chain = ingressChain
		leave(unix.NFT_CMP_EQ)
	case ofNodeChain:
		if f.Services {
			leave(unix.NFT_CMP_NEQ)
		}
	}
	if f.KeepEstablished {
		rules = append(rules, func(e expressions) { e.state(stateEstablished); accept(e) })
	}
	for _, p := range []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} { // errors that belong to a connection
		rules = append(rules, func(e expressions) { e.protocol(p); e.state(stateRelated); accept(e) })
	}
	// The pod is the client of its egress and the server of its ingress.
	pods := func(v6 bool, direction uint8) func(expressions) {
		return func(e expressions) {
			e.tuple(addressKey(v6), direction, register)
			e.LookupInto(podSet(chain, v6), unix.NFT_REG_VERDICT)
		}
	}
	direction, offsets := uint8(original), map[bool]uint32{false: 12, true: 8}
	from, to := uint16(dhcpClient4), uint16(dhcpServer4)
	switch chain {
	case Deny:
		deny := []func(expressions){func(e expressions) { e.Counter(); e.Verdict(nft.VerdictDrop, "") }}
		if f.Log {
			deny = append([]func(expressions){expressions.log}, deny...)
		}
		return deny
	case toNodeChain, ofNodeChain:
		// A packet without a connection cannot be told from an answer to the node.
		chain = egressChain
		return append(rules, func(e expressions) { e.dhcp(from, to); accept(e) }, pods(false, original), pods(true, original))
	case ingressChain:
		direction, offsets = reply, map[bool]uint32{false: 16, true: 24}
		from, to = to, from
	}
	rules = append(rules,
		func(e expressions) {
			e.family(true)
			e.icmp6(ndFirst, ndLast)
			accept(e)
		},
		func(e expressions) { e.dhcp(from, to); e.onBridge(direction); accept(e) })
	for _, v6 := range []bool{false, true} {
		rules = append(rules, pods(v6, direction),
			func(e expressions) { // not by the map of chains, which the kernel validates for each rule that uses it
				e.state(stateInvalid | stateUntracked)
				e.family(v6)
				e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offsets[v6], uint32(addressField(v6).Size()), register)
				e.Lookup(podSet(chain+strays, v6), false)
				e.Counter()
				e.Verdict(nft.VerdictDrop, "")
			})
	}
	return append(rules, accept)
}

// Message returns the request that makes the chain without its rules.
func (c *Chain) Message() nlconn.Message {
	return Table().ChainMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Name)
}

// RuleMessages returns the requests that append the chain's rules.
func (c *Chain) RuleMessages() (msgs []nlconn.Message, err error) {
	for i := range c.Rules {
		m, failed := c.Rules[i].message(c.Name)
		msgs, err = append(msgs, m), errors.Join(err, failed)
	}
	return msgs, err
}
