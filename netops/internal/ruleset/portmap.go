package ruleset

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// priorityDestinationNAT is NF_IP_PRI_NAT_DST of linux/netfilter_ipv4.h.
	priorityDestinationNAT = -100
	// priorityRaw is NF_IP_PRI_RAW: before connections are tracked and
	// translated.
	priorityRaw = -300
)

// portMapFeature translates ports of the node to containers. Each family, 4 or 6,
// has these sets:
//
//   - portmap4 maps (protocol, port) of any address of the node to a container's
//     address and port. portmap_ip4 maps (address, protocol, port).
//   - portmap_if4 and portmap_ip_if4 have the same keys, for ports that are
//     mapped under conditions. The value is "goto" a chain of conditions, see
//     ConditionVerdict.
//   - portmap_snat4 maps a container's address to a verdict on the source of
//     translated connections. "goto portmap_hairpin" masquerades the source if
//     the container could not answer it, or would answer it without passing the
//     node. "goto portmap_masquerade" always masquerades. Connections to a
//     container without an element keep their source.
//   - portmap_near4 holds pairs (subnet, subnet) in which containers answer each
//     other directly.
//   - portmap_mark4 maps a container's address to the mark bit of masqueraded
//     connections: "jump" a chain that sets the bit, see MarkVerdict.
//
// The cost of a lookup does not depend on the number of mapped ports.
//
// portmap_local holds the devices by which packets from 127.0.0.1 may leave. Such
// a device has route_localnet set, which has no other protection. Packets from or
// to loopback addresses that arrive at such a device are dropped before the
// reverse translation of replies, which makes loopback addresses.
func portMapFeature() nft.Feature {
	table := inetTable()
	local := &nft.Set{Table: table, Name: "portmap_local", Key: []nft.Field{nft.IfName}}
	four, six := portMap4(table), portMap6(table)
	return nft.Feature{
		Table: table,
		Sets:  append(append(four.all(), six.all()...), local),
		Chains: func() []nft.Chain {
			prerouting := nft.Chain{Name: "portmap_prerouting", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityDestinationNAT}
			output := nft.Chain{Name: "portmap_output", Kind: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: priorityDestinationNAT}
			prerouting.Rules = []nft.Rule{nft.NewRule(nft.ToThisNode(), nft.Goto("portmap"))}
			output.Rules = prerouting.Rules
			return []nft.Chain{
				{Name: portMapTranslate, Rules: append(four.translate(), six.translate()...)},
				{Name: "portmap", Rules: append(append(four.conditions(), six.conditions()...), nft.NewRule(nft.Goto(portMapTranslate)))},
				prerouting, output,
				{Name: portMapMasquerade, Rules: []nft.Rule{four.marks(), six.marks(), nft.NewRule(nft.Masquerade())}},
				{Name: "portmap_hairpin", Rules: []nft.Rule{
					nft.NewRule(nft.SourceIn("127.0.0.0/8"), nft.Goto(portMapMasquerade)),
					nft.NewRule(nft.SourceIn("::1/128"), nft.Goto(portMapMasquerade)),
					four.hairpin(), six.hairpin(),
				}},
				{
					Name: "portmap_postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT,
					Rules: []nft.Rule{four.sources(), six.sources()},
				},
				{
					Name: "portmap_guard", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityRaw,
					Rules: []nft.Rule{
						nft.NewRule(nft.InputLink(), nft.In(local), nft.Next(), nft.DestinationIn("127.0.0.0/8"), nft.Drop()),
						nft.NewRule(nft.InputLink(), nft.In(local), nft.Next(), nft.SourceIn("127.0.0.0/8"), nft.Drop()),
					},
				},
			}
		},
		ChainOf: portMapChain,
	}
}

const (
	portMapTranslate  = "portmap_translate"
	portMapMasquerade = "portmap_masquerade"
)

// portMapFamily has the parts of portMapFeature that exist for each family.
type portMapFamily struct {
	l3                       byte
	address                  nft.Field
	source, destination      func() nft.Part
	ports, portsOf           *nft.Set
	conditional, conditionOf *nft.Set
	snat, near, mark         *nft.Set
}

func portMap4(table nft.Table) *portMapFamily {
	f := &portMapFamily{l3: unix.NFPROTO_IPV4, address: nft.IP4Addr, source: nft.Source4, destination: nft.Destination4}
	f.makeSets(table, "4", nft.IP4Prefix)
	return f
}

func portMap6(table nft.Table) *portMapFamily {
	f := &portMapFamily{l3: unix.NFPROTO_IPV6, address: nft.IP6Addr, source: nft.Source6, destination: nft.Destination6}
	f.makeSets(table, "6", nft.IP6Prefix)
	return f
}

func (f *portMapFamily) makeSets(table nft.Table, suffix string, prefix nft.Field) {
	port, portOf := []nft.Field{nft.InetProto, nft.InetService}, []nft.Field{f.address, nft.InetProto, nft.InetService}
	target, decision := []nft.Field{f.address, nft.InetService}, []nft.Field{nft.Verdict}
	f.ports = &nft.Set{Table: table, Name: "portmap" + suffix, Key: port, Data: target}
	f.portsOf = &nft.Set{Table: table, Name: "portmap_ip" + suffix, Key: portOf, Data: target}
	f.conditional = &nft.Set{Table: table, Name: "portmap_if" + suffix, Key: port, Data: decision}
	f.conditionOf = &nft.Set{Table: table, Name: "portmap_ip_if" + suffix, Key: portOf, Data: decision}
	f.snat = &nft.Set{Table: table, Name: "portmap_snat" + suffix, Key: []nft.Field{f.address}, Data: decision}
	f.near = &nft.Set{Table: table, Name: "portmap_near" + suffix, Key: []nft.Field{prefix, prefix}}
	f.mark = &nft.Set{Table: table, Name: "portmap_mark" + suffix, Key: []nft.Field{f.address}, Data: decision}
}

func (f *portMapFamily) all() []*nft.Set {
	return []*nft.Set{f.ports, f.portsOf, f.conditional, f.conditionOf, f.snat, f.near, f.mark}
}

// conditions returns the rules that send ports with conditions to their chain of
// conditions.
func (f *portMapFamily) conditions() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(f.destination(), nft.TransportProtocol(), nft.TransportPort(), nft.VerdictFrom(f.conditionOf)),
		nft.NewRule(nft.OfFamily(f.l3), nft.TransportProtocol(), nft.TransportPort(), nft.VerdictFrom(f.conditional)),
	}
}

// translate returns the rules that translate mapped ports to their container.
func (f *portMapFamily) translate() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(f.destination(), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(f.portsOf, f.l3)),
		nft.NewRule(nft.OfFamily(f.l3), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(f.ports, f.l3)),
	}
}

func (f *portMapFamily) sources() nft.Rule {
	return nft.NewRule(nft.Tracked(expr.CtKeySTATUS, ctDestinationNAT), f.destination(), nft.VerdictFrom(f.snat))
}

func (f *portMapFamily) hairpin() nft.Rule {
	return nft.NewRule(f.source(), f.destination(), nft.In(f.near), nft.Goto(portMapMasquerade))
}

func (f *portMapFamily) marks() nft.Rule {
	return nft.NewRule(f.destination(), nft.VerdictFrom(f.mark))
}
