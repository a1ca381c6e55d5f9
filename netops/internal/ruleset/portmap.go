package ruleset

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

const (
	// PriorityPublished is one after NF_IP_PRI_NAT_DST of linux/netfilter_ipv4.h, at which kube-proxy translates
	// Services. A connection is translated once, and at the same priority the chain that was made last would come
	// first: a published port could take the connections of a Service.
	PriorityPublished = -99
	// priorityRaw is NF_IP_PRI_RAW: before connections are tracked and
	// translated.
	priorityRaw = -300
)

// portMapFeature translates ports of the node to containers. Each family, 4 or 6,
// has these sets:
//
//   - portmap4 maps (protocol, port) of any address of the node to a container's
//     address and port. portmap_ip_tcp4, portmap_ip_udp4 and portmap_ip_sctp4 map
//     (address, port), not one map for the three protocols: nft 0.9.8 loads no rule that translates by a key of three fields,
//     and none that matches no transport protocol, so each protocol has its rules.
//   - portmap_if4 maps (protocol, port) and portmap_ip_if4 (address, protocol,
//     port), for ports that are mapped under conditions. The value is "goto" a chain
//     of conditions, see ConditionVerdict.
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
			return slices.Concat([]nft.Chain{
				{Name: portMapTranslate, Rules: append(four.translate(), six.translate()...)},
				{Name: "portmap", Rules: append(append(four.conditions(), six.conditions()...), nft.NewRule(nft.Goto(portMapTranslate)))},
			}, toThisNode("portmap"), []nft.Chain{
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
			})
		},
		ChainOf: portMapChain,
	}
}

// portRangeFeature translates ranges of ports of the node to the same ports of
// containers. portmap_range4 maps (protocol, ports) to a container's address, and
// portmap_ip_range4 maps (address, protocol, ports). A range is one element.
// nftables cannot add an offset to a port, so portMapFeature has an element for each
// port where the container's ports differ.
func portRangeFeature() nft.Feature {
	table := inetTable()
	makeSets := func(suffix string, address nft.Field) (of, all *nft.Set) {
		of = &nft.Set{Table: table, Name: "portmap_ip_range" + suffix, Key: []nft.Field{address, nft.InetProto, nft.ServiceRange}, Data: []nft.Field{address}}
		all = &nft.Set{Table: table, Name: "portmap_range" + suffix, Key: []nft.Field{nft.InetProto, nft.ServiceRange}, Data: []nft.Field{address}}
		return of, all
	}
	of4, any4 := makeSets("4", nft.IP4Addr)
	of6, any6 := makeSets("6", nft.IP6Addr)
	return nft.Feature{
		Table: table,
		Sets:  []*nft.Set{of4, any4, of6, any6},
		Chains: func() []nft.Chain {
			return append([]nft.Chain{{Name: "portmap_range", Rules: slices.Concat(
				translateRanges(unix.NFPROTO_IPV4, nft.Destination4, of4, any4), translateRanges(unix.NFPROTO_IPV6, nft.Destination6, of6, any6),
			)}}, toThisNode("portmap_range")...)
		},
	}
}

// toThisNode returns the base chains that send connections to a local address of the
// node to a chain, before their destination is translated.
func toThisNode(chain string) []nft.Chain {
	rules := []nft.Rule{nft.NewRule(nft.ToThisNode(), nft.Goto(chain))}
	return []nft.Chain{
		{Name: chain + "_prerouting", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: PriorityPublished, Rules: rules},
		{Name: chain + "_output", Kind: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: PriorityPublished, Rules: rules},
	}
}

const (
	portMapTranslate  = "portmap_translate"
	portMapMasquerade = "portmap_masquerade"
)

// PortsOfAddress is the name of the map of one protocol's ports of single addresses,
// for the family "4" or "6".
func PortsOfAddress(protocol, family string) string { return "portmap_ip_" + protocol + family }

// portMapFamily has the parts of portMapFeature that exist for each family.
type portMapFamily struct {
	l3                       byte
	address                  nft.Field
	source, destination      func() nft.Part
	ports                    *nft.Set
	portsOf                  map[byte]*nft.Set // by IPPROTO_*
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
	f.portsOf = map[byte]*nft.Set{}
	for _, p := range portProtocols() {
		f.portsOf[p] = &nft.Set{Table: table, Name: PortsOfAddress(nft.ProtocolName(p), suffix), Key: []nft.Field{f.address, nft.InetService}, Data: target}
	}
	f.conditional = &nft.Set{Table: table, Name: "portmap_if" + suffix, Key: port, Data: decision}
	f.conditionOf = &nft.Set{Table: table, Name: "portmap_ip_if" + suffix, Key: portOf, Data: decision}
	f.snat = &nft.Set{Table: table, Name: "portmap_snat" + suffix, Key: []nft.Field{f.address}, Data: decision}
	f.near = &nft.Set{Table: table, Name: "portmap_near" + suffix, Key: []nft.Field{prefix, prefix}}
	f.mark = &nft.Set{Table: table, Name: "portmap_mark" + suffix, Key: []nft.Field{f.address}, Data: decision}
}

func (f *portMapFamily) all() []*nft.Set {
	all := []*nft.Set{f.ports}
	for _, p := range portProtocols() {
		all = append(all, f.portsOf[p])
	}
	return append(all, f.conditional, f.conditionOf, f.snat, f.near, f.mark)
}

// portProtocols are the protocols whose ports can be mapped.
func portProtocols() []byte { return []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} }

// conditions returns the rules that send ports with conditions to their chain of
// conditions.
func (f *portMapFamily) conditions() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(f.destination(), nft.TransportProtocol(), nft.TransportPort(), nft.VerdictFrom(f.conditionOf)),
		nft.NewRule(nft.OfFamily(f.l3), nft.TransportProtocol(), nft.TransportPort(), nft.VerdictFrom(f.conditional)),
	}
}

// translate returns the rules that translate mapped ports to their container: first
// the ports of one address, then those of all addresses.
func (f *portMapFamily) translate() []nft.Rule {
	var of, all []nft.Rule
	for _, p := range portProtocols() {
		of = append(of, nft.NewRule(nft.OfProtocol(p), f.destination(), nft.TransportPort(), nft.DestinationFrom(f.portsOf[p], f.l3)))
		all = append(all, nft.NewRule(nft.OfProtocol(p), nft.OfFamily(f.l3), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(f.ports, f.l3)))
	}
	return append(of, all...)
}

// translateRanges is translate for ranges of ports, whose maps have no port as their
// value: nft 0.9.8 then needs no rule for each protocol.
func translateRanges(l3 byte, destination func() nft.Part, of, all *nft.Set) []nft.Rule {
	return []nft.Rule{
		nft.NewRule(destination(), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(of, l3)),
		nft.NewRule(nft.OfFamily(l3), nft.TransportProtocol(), nft.TransportPort(), nft.DestinationFrom(all, l3)),
	}
}

func (f *portMapFamily) sources() nft.Rule {
	return nft.NewRule(nft.Tracked(unix.NFT_CT_STATUS, ctDestinationNAT), f.destination(), nft.VerdictFrom(f.snat))
}

func (f *portMapFamily) hairpin() nft.Rule {
	return nft.NewRule(f.source(), f.destination(), nft.In(f.near), nft.Goto(portMapMasquerade))
}

func (f *portMapFamily) marks() nft.Rule {
	return nft.NewRule(f.destination(), nft.VerdictFrom(f.mark))
}
